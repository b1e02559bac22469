"""Run the query of a page on a thread, limit the number of queries, and show errors as a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.errors import BusyError, ReconsumeError
from reconsume.sidecar.ui.letter_form import BadFormError
from reconsume.sidecar.ui.plans import RefusedError
from reconsume.sidecar.ui.security import ForgedError, Session, Sessions, ValueGate
from reconsume.sidecar.ui.templating import Renderer
from reconsume.sidecar.view.query import BadCursorError
from reconsume.sidecar.view.query_pool import UnknownError

THREADS = 4
MOST_WAITING = 16
"""Queries to Kafka at once, with those that wait. One more is refused, so that a page requested in a loop does no
harm."""
MOST_SCANS = 6
"""Scans of whole topics at once, with those that wait for each other."""

Page = Callable[[Request, Session | None], Awaitable[Response]]


ERRORS: Mapping[type[Exception], tuple[int, str]] = {
    ForgedError: (403, "Nothing was done: {}."),
    BadFormError: (400, "Nothing was done: {}."),
    RefusedError: (409, "Nothing was done: {}."),
    BadCursorError: (400, "The list was made anew since: begin at its first page."),
    UnknownError: (503, "Nothing is known of the view now: {}."),
    BusyError: (503, "{}."),
    ReconsumeError: (502, "{}."),
}
"""What a user is told of an error, and by which status; the first that fits."""


class ThreadQueries(BoundedThreads):
    """Blocking queries of pages on a few threads."""

    def __init__(self, threads: int = THREADS, most: int = MOST_WAITING) -> None:
        super().__init__("ui", threads, most)

    @classmethod
    def one_by_one(cls) -> ThreadQueries:
        """Return an instance for scans of whole topics, which run one by one: each uses some of the memory that all
        share."""
        return cls(1, MOST_SCANS)


class Endpoints:
    """Builds an endpoint from a page: it finds the user's session and turns errors into answers."""

    def __init__(self, render: Renderer, sessions: Sessions, gate: ValueGate, *, everyone_reads: bool) -> None:
        self._render, self._sessions, self._gate, self._everyone_reads = render, sessions, gate, everyone_reads

    def __call__(
        self, page: Page, *, open_to_all: bool = False, is_private: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. `open_to_all`: serve it also to visitors where only signed-in users may
        read. `is_private`: nothing is left of the page for readers who may not see values."""

        async def endpoint(request: Request) -> Response:
            if is_foreign(request):
                return Response(status_code=403)
            session = self._sessions.of(request)
            is_hidden = is_private and not self._gate.opens_to(session)
            if is_hidden or (session is None and not self._everyone_reads and not open_to_all):
                return self._ask_to_sign_in(request)
            try:
                return await page(request, session)
            except tuple(ERRORS) as error:
                status, text = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
                return self._error_page(request, session, status, text.format(error))

        return endpoint

    def _ask_to_sign_in(self, request: Request) -> Response:
        if "hx-request" in request.headers:  # htmx would follow the redirect and put the form into the page
            return self._render("trouble.html", text="You are not signed in any more.")
        return self._render.redirect("/sign-in")

    def _error_page(self, request: Request, session: Session | None, status: int, text: str) -> Response:
        # htmx inserts only successful responses into a page, so the error of a part is sent with status 200.
        if "hx-request" in request.headers:
            return self._render("trouble.html", 200, text=text)
        return self._render("error.html", status, text=text, session=session, here="")


def is_foreign(request: Request) -> bool:
    """Whether a page of another origin requests it without the user's intent, for example as an image. Links are
    allowed."""
    whence, how = request.headers.get("sec-fetch-site", ""), request.headers.get("sec-fetch-mode", "")
    return whence in ("cross-site", "same-site") and how != "navigate"
