"""Answer queries to the view on a few threads. Each query has its own connection to SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.clock import now
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.source import Source

THREADS = 2
MOST_WAITING = 32
"""Queries at once. Each may take seconds, and memory for 1 000 rows."""
T = TypeVar("T")


class Origin(NamedTuple):
    """Where an answer comes from.

    `as_of`: epoch ms up to which it is complete. `source`: what the copy is made from. `since`, `sums_since`: epoch ms
    from which on rows and sums have every event; 0 if none is lacking. `shortfall`: a sentence about what was left out,
    or empty.
    """

    as_of: int
    source: Source
    since: int
    sums_since: int
    shortfall: str


class UnknownError(Exception):
    """Raised if nothing is known of the view now. The message says why."""


class Threads(Protocol):
    """Threads for queries."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run blocking work, and return its result. Raises BusyError if there are too many, and whatever it raises."""

    def close(self) -> None:
        """Accept nothing more."""


class QueryPool:
    """A pool of threads that query the local copy. It is created and called on the event loop.

    `threads`: those to use instead of `THREADS` of its own.
    """

    def __init__(self, view: ViewFollower, threads: Threads | None = None) -> None:
        self._view = view
        self._threads = threads or BoundedThreads("view-reader", THREADS, MOST_WAITING)

    async def ask(self, question: Callable[[ViewQuery], T]) -> tuple[T, Origin]:
        """Return the result of a query, and where it comes from. Raises UnknownError, or BusyError: too many."""
        status = self._view.status
        if status.as_of is None or status.path is None:
            raise UnknownError(status.problem or "the local copy is being made anew")
        path, origin = (
            status.path,
            Origin(status.as_of, status.source, status.since, status.sums_since, status.shortfall),
        )

        def asked() -> T:
            with questions(path) as query:
                return question(query)

        try:
            return await self._threads(asked), origin
        except sqlite3.Error as fault:
            raise UnknownError(f"the local copy cannot be read: {fault}") from fault

    def close(self) -> None:
        """Finish the queries that are running, cancel the others, and accept no more."""
        self._threads.close()


def age(as_of: int) -> float:
    """Return the seconds since `as_of`."""
    return max(0, now().wall_ms - as_of) / 1000
