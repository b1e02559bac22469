"""Answer queries to the view on a few threads. Each query has its own connection to SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.clock import now
from reconsume.sidecar.view.follower import CopyStatus
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.source import Source

THREADS = 2


MOST_WAITING = 32
"""Queries at once. Each may take seconds, and memory for 1 000 rows."""


T = TypeVar("T")


class Origin(NamedTuple):
    """Where an answer comes from.

    `as_of`: epoch ms up to which it is complete. `source`: what the copy is made from. `since`: epoch ms from which on
    a copy of events has every event; 0 if none is lacking. `shortfall`: a sentence about what was left out, or empty.
    """

    as_of: int
    source: Source
    since: int
    shortfall: str


class Followed(Protocol):
    """The part that keeps the local copy."""

    status: CopyStatus


class UnknownError(Exception):
    """Raised if nothing is known of the view now. The message says why."""


class QueryPool:
    """A pool of threads that query the local copy. It is created and called on the event loop."""

    def __init__(self, view: Followed) -> None:
        self._view = view
        self._threads = BoundedThreads("view-reader", THREADS, MOST_WAITING)

    async def ask(self, question: Callable[[ViewQuery], T]) -> tuple[T, Origin]:
        """Return the result of a query, and where it comes from. Raises UnknownError, or BusyError: too many."""
        status = self._view.status
        if status.as_of is None or status.path is None:
            raise UnknownError(status.problem or "the local copy is being made anew")
        path, origin = status.path, Origin(status.as_of, status.source, status.since, status.shortfall)

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
