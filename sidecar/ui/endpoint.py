"""Run the query of a page on a thread, limit the number of queries, and show errors as a page."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.errors import BusyError, ReconsumeError
from reconsume.sidecar.ui.letter_form import BadFormError, RefusedError
from reconsume.sidecar.ui.security import ForgedError, Session, Sessions, ValueGate
from reconsume.sidecar.ui.templating import Renderer
from reconsume.sidecar.view.query import BadCursorError
from reconsume.sidecar.view.query_pool import UnknownError

THREADS = 4
MOST_WAITING = 16
"""Queries to Kafka at once, with those that wait. One more is refused, so that a page requested in a loop does no
harm."""
MOST_VISITORS = 8
"""Pages in progress for visitors who have not signed in. Beyond that, one is refused before anything is rendered: all
pages are rendered on one event loop, and a flood of visitors would make those who have signed in wait for seconds."""
MOST_SCANS = 6
"""Scans of whole topics at once, with those that wait for each other."""

T = TypeVar("T")
Page = Callable[[Request, Session | None], Awaitable[Response]]

_SIGNED_IN = ContextVar("reconsume.ui.signed-in", default=False)
"""Whether the request that this task answers comes from a user who has signed in."""


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


class ThreadQueries:
    """Blocking queries of pages, on threads that users who have signed in do not share with visitors.

    So whoever floods the dashboard without a token takes no place from an operator who has to act in an incident.
    """

    def __init__(self, threads: int = THREADS, most: int = MOST_WAITING, turn: threading.Lock | None = None) -> None:
        """`threads` and `most` are those of each kind of readers. `turn`: the lock of queries that run one by one."""
        self._visitors, self._users = BoundedThreads("ui-visitors", threads, most), BoundedThreads("ui", threads, most)
        self._turn: AbstractContextManager[object] = nullcontext() if turn is None else turn

    async def __call__(self, question: Callable[[], T]) -> T:
        """Return the result of a query. Raises BusyError if there are too many, and any error of the query itself."""

        def ask_in_turn() -> T:
            with self._turn:
                return question()

        return await (self._users if _SIGNED_IN.get() else self._visitors)(ask_in_turn)

    @classmethod
    def one_by_one(cls) -> ThreadQueries:
        """Return an instance for scans of whole topics, which run one by one: each uses some of the memory that all
        share."""
        return cls(1, MOST_SCANS, threading.Lock())

    def close(self) -> None:
        """Let what runs end, drop what waits, and accept nothing more."""
        self._visitors.close()
        self._users.close()


def count_as_user() -> None:
    """Let the rest of this request use the threads of users: its sender has just proved that it has a token."""
    _SIGNED_IN.set(True)


class Endpoints:
    """Builds an endpoint from a page: it finds the user's session and turns errors into answers."""

    def __init__(self, render: Renderer, sessions: Sessions, gate: ValueGate, *, everyone_reads: bool) -> None:
        self._render, self._sessions, self._gate, self._everyone_reads = render, sessions, gate, everyone_reads
        self._visitors = 0
        """Pages in progress for visitors."""

    def __call__(
        self, page: Page, *, open_to_all: bool = False, is_private: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. `open_to_all`: serve it also to visitors where only signed-in users may
        read. `is_private`: nothing is left of the page for readers who may not see values."""

        async def endpoint(request: Request) -> Response:
            if is_foreign(request):
                return Response(status_code=403)
            session = self._sessions.of(request)
            _SIGNED_IN.set(session is not None)
            is_hidden = is_private and not self._gate.opens_to(session)
            if is_hidden or (session is None and not self._everyone_reads and not open_to_all):
                return self._ask_to_sign_in(request)
            if session is None and self._visitors >= MOST_VISITORS:
                return PlainTextResponse("Too many visitors at once: try again in a moment.", 503, {"retry-after": "1"})
            self._visitors += session is None
            try:
                return await page(request, session)
            except tuple(ERRORS) as error:
                status, text = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
                return self._error_page(request, session, status, text.format(error))
            finally:
                self._visitors -= session is None

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
