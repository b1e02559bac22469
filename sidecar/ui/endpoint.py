"""What every page does with its question: asked on a thread, bounded in number, its errors told as a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sidecar.errors import ReconsumeError
from sidecar.ui.redrives import RefusedError
from sidecar.ui.security import ForgedError, Session, Sessions
from sidecar.ui.templating import Renderer
from sidecar.view.query import BadCursorError
from sidecar.view.query_pool import UnknownError

THREADS = 4
MOST_WAITING = 16
"""Questions to Kafka at once; one more is refused, so that a page that is asked for in a loop harms nobody."""
MOST_SCANS = 6
"""Readings of whole topics that wait for each other."""

T = TypeVar("T")
Page = Callable[[Request, Session | None], Awaitable[Response]]


class BusyError(ReconsumeError):
    """Too many questions at once."""


class ThreadQueries:
    """Blocking questions, on a few threads; `most` at once, with those that wait."""

    def __init__(self, threads: int = THREADS, most: int = MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, "ui")
        self._most, self._waiting = most, 0

    async def __call__(self, question: Callable[[], T]) -> T:
        """The answer. Raises what the question raises, and BusyError."""
        if self._waiting >= self._most:
            raise BusyError("too many questions at once: try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, question)
        finally:
            self._waiting -= 1

    @classmethod
    def one_by_one(cls) -> ThreadQueries:
        """For readings of whole topics: each takes some of the memory that all share."""
        return cls(1, MOST_SCANS)

    def close(self) -> None:
        """Answer what is being asked, and no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Endpoints:
    """Makes endpoints of pages: who asks, and what to say when it cannot be answered."""

    def __init__(self, render: Renderer, sessions: Sessions, *, everyone_reads: bool) -> None:
        self._render, self._sessions, self._everyone_reads = render, sessions, everyone_reads

    def __call__(self, page: Page, *, open_to_all: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page; `open_to_all`: also for visitors where only those who are signed in may read."""

        async def endpoint(request: Request) -> Response:
            if is_foreign(request):
                return Response(status_code=403)
            session = self._sessions.of(request)
            if session is None and not self._everyone_reads and not open_to_all:
                return self._ask_to_sign_in(request)
            try:
                return await page(request, session)
            except ForgedError as error:
                return self._told(request, session, 403, f"Nothing was done: {error}.")
            except RefusedError as error:
                return self._told(request, session, 409, f"Nothing was done: {error}.")
            except BadCursorError:
                return self._told(request, session, 400, "The list was made anew since: begin at its first page.")
            except UnknownError as error:
                return self._told(request, session, 503, f"Nothing is known of the view now: {error}.")
            except BusyError as error:
                return self._told(request, session, 503, f"{error}.")
            except ReconsumeError as error:
                return self._told(request, session, 502, f"{error}.")

        return endpoint

    def _ask_to_sign_in(self, request: Request) -> Response:
        if "hx-request" in request.headers:  # htmx would follow to the form, and put it into the page
            return self._render("trouble.html", text="You are not signed in any more.")
        return RedirectResponse("/sign-in", 303)

    def _told(self, request: Request, session: Session | None, status: int, text: str) -> Response:
        # htmx puts only good answers into a page, and a part of one must tell its trouble too.
        if "hx-request" in request.headers:
            return self._render("trouble.html", 200, text=text)
        return self._render("error.html", status, text=text, session=session, here="")


def is_foreign(request: Request) -> bool:
    """Whether a page of another origin asks for it behind a person's back, as a picture, say; links are fine."""
    whence, how = request.headers.get("sec-fetch-site", ""), request.headers.get("sec-fetch-mode", "")
    return whence in ("cross-site", "same-site") and how != "navigate"
