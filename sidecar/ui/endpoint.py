"""What stands between a request and its page: who may see it, how many run at once, and how errors are shown.

An endpoint finds the user's session, refuses what a page of another origin requests, and sends visitors to the sign-in
form where they may not read. Pages are rendered on one event loop, and their blocking queries run on a few threads.
Both are divided between users who have signed in and visitors, so that whoever floods the dashboard without a token
takes no place from an operator who has to act in an incident.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.errors import BusyError, ContractError, ReconsumeError, RecordError
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.ui.audit_log import AuditLog
from reconsume.sidecar.ui.letter_form import BadFormError, RefusedError
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import ForgedError, Session, Sessions, ValueGate, is_foreign
from reconsume.sidecar.ui.templating import Renderer
from reconsume.sidecar.view.query import BadCursorError, UnknownError

THREADS = 4
MOST_WAITING = 16
"""Queries to Kafka at once, with those that wait. One more is refused, so that a page requested in a loop does no
harm."""
MOST_VISITORS = 8
"""Pages in progress for visitors who have not signed in. Beyond that, one is refused before anything is rendered: a
flood of visitors would make those who have signed in wait for seconds."""
MOST_SCANS = 6
"""Scans of whole topics at once, with those that wait for each other."""

T = TypeVar("T")
Page = Callable[[Request, Session | None], Awaitable[Response]]

_SIGNED_IN = ContextVar("reconsume.ui.signed-in", default=False)
"""Whether the request that this task answers comes from a user who has signed in."""

HTTP_ERRORS = {404: "There is no such page.", 405: "This page is not asked for like that."}
ERRORS: dict[type[Exception], tuple[int, str]] = {
    ForgedError: (403, "Nothing was done: {}."),
    BadFormError: (400, "Nothing was done: {}."),
    RefusedError: (409, "Nothing was done: {}."),
    BadCursorError: (400, "That is no place in a list: begin at its first page."),
    UnknownError: (503, "Nothing is known of the view now: {}."),
    BusyError: (503, "{}."),
    ReconsumeError: (502, "{}."),
    Exception: (500, "A fault of the dashboard itself; its log says more."),
}
"""What a user is told of an error, and by which status; the first that fits."""


class ThreadQueries:
    """Blocking queries of pages, on threads that users who have signed in do not share with visitors."""

    def __init__(
        self, threads: int = THREADS, most: int = MOST_WAITING, turn: AbstractContextManager[object] | None = None
    ) -> None:
        """`threads` and `most` are those of each kind of readers. `turn`: a lock, for queries that run one by one."""
        self._visitors = BoundedThreads("ui-visitors", threads, most, one_operation)
        self._users = BoundedThreads("ui", threads, most, one_operation)
        self._turn = turn or nullcontext()

    async def __call__(self, question: Callable[[], T]) -> T:
        """Return the result of a query. Raises BusyError if there are too many, and any error of the query itself."""

        context = copy_context()  # of the request: commands that a text recommends name its group

        def ask_in_turn() -> T:
            with self._turn:
                return context.run(question)

        return await (self._users if _SIGNED_IN.get() else self._visitors)(ask_in_turn)

    def close(self) -> None:
        """Let what runs end, drop what waits, and accept nothing more."""
        self._visitors.close()
        self._users.close()


@dataclass(frozen=True, slots=True)
class Site:
    """What the pages of a dashboard share. `ask` runs short queries. `scan` runs scans of whole topics, one by one,
    because each uses some of the memory that all share."""

    render: Renderer
    ask: ThreadQueries
    scan: ThreadQueries
    looks: Queries
    gate: ValueGate
    audit: AuditLog


def sound(work: Callable[[], T]) -> T:
    """Return what the work of a form returns. Raises RefusedError for what cannot be done so."""
    try:
        return work()
    except (ContractError, RecordError) as fault:
        raise RefusedError(str(fault)) from fault


def count_as_user() -> None:
    """Let the rest of this request use the threads of users: its sender has just proved that it has a token."""
    _SIGNED_IN.set(True)


class Visitors:
    """Counts the pages in progress for visitors."""

    def __init__(self) -> None:
        self.in_progress = 0


class Reception(Protocol):
    """What all pages of a process share of who reads them."""

    sessions: Sessions
    gate: ValueGate
    visitors: Visitors
    everyone_reads: bool


class Endpoints:
    """Builds an endpoint from a page, and shows errors as pages."""

    def __init__(self, render: Renderer, reception: Reception) -> None:
        self._render, self._sessions, self._gate = render, reception.sessions, reception.gate
        self._visitors, self._everyone_reads = reception.visitors, reception.everyone_reads

    def __call__(
        self, page: Page, *, open_to_all: bool = False, is_private: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. `open_to_all`: serve it also to visitors where only signed-in users may
        read. `is_private`: nothing is left of the page for readers who may not see values."""

        async def endpoint(request: Request) -> Response:
            if is_foreign(request):
                return Response(status_code=403)
            session = request.state.session = self._sessions.of(request)
            _SIGNED_IN.set(session is not None)
            is_hidden = is_private and not self._gate.opens_to(session)
            if is_hidden or (session is None and not self._everyone_reads and not open_to_all):
                if "hx-request" in request.headers:  # htmx would follow the redirect and put the form into the page
                    return self._render("trouble.html", text="You are not signed in any more.")
                return self._render.redirect("/sign-in")
            if session is None and self._visitors.in_progress >= MOST_VISITORS:
                return PlainTextResponse("Too many visitors at once: try again in a moment.", 503, {"retry-after": "1"})
            self._visitors.in_progress += session is None
            try:
                return await page(request, session)
            finally:
                self._visitors.in_progress -= session is None

        return endpoint

    async def error_page(self, request: Request, error: Exception) -> Response:
        """Show an error that a page raised. The text of an unknown error stays in the log."""
        if isinstance(error, HTTPException):
            status, text = error.status_code, HTTP_ERRORS.get(error.status_code, error.detail)
        else:
            status, text = next(shown for kind, shown in ERRORS.items() if isinstance(error, kind))
            text = text.format(error)
        # htmx inserts only successful responses into a page, so the error of a part is sent with status 200.
        if "hx-request" in request.headers:
            return self._render("trouble.html", 200, text=text)
        session = getattr(request.state, "session", None)
        return self._render("error.html", status, session=session, here="", text=text)
