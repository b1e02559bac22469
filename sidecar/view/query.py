"""Query the local copy of the view: one message, a page of messages, the sums, or the failures.

Each use opens the file anew, for reading only, because the file may have been rebuilt since the last one. No query but
an operator's may take longer than a few seconds.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.clock import now
from reconsume.sidecar.view.copy import reading
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State
from reconsume.topics.retry_headers import LARGEST_LONG
from reconsume.topics.view_record import StatsRow, encode_row

if TYPE_CHECKING:
    from reconsume.sidecar.view.follower import ViewFollower

T = TypeVar("T")
LONGEST = 5.0
"""Seconds for one query. Expensive queries must not hold the threads that other callers wait for."""
STEPS = 20_000
"""SQLite instructions between two checks of the time: about a millisecond."""
BUSY_SECONDS = 1.0
PAGE = 1_000
"""Rows that are in memory at a time where all are wanted."""
LONGEST_PAGE = 1024 * 1024
"""Bytes of the values of a page; a page ends with the value that passes them. A row of ours has 600, but whoever may
write the view may write rows of 16 KiB."""
CURSOR = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
MOST_REASONS = 20
"""Reasons that are returned for the failures of a window."""

MOST_LEVELS = 100
"""Levels that are counted. A group has 20, but an event may name any."""

LEVELS = """
SELECT level, count(*), sum(due <= ?), min(due), max(due) FROM message WHERE level IS NOT NULL GROUP BY level LIMIT ?
"""
"""What waits by level. Only a record that waits in a level has one, so that the index of levels answers it alone."""
PARKED = "SELECT count(*) FROM message WHERE state = ? AND due = 0"
DEAD = """
SELECT reason, count(*) FROM message INDEXED BY message_dead WHERE state = 'DLQ'
GROUP BY reason ORDER BY count(*) DESC, reason LIMIT ?
"""
"""Dead letters by reason. SQLite would take the index of states and look at each row."""
NEWEST_DEAD = """
SELECT id, at, coalesce(json_extract(CAST(value AS TEXT), '$.text'), '') FROM message INDEXED BY message_dead
WHERE state = 'DLQ' AND reason = ? ORDER BY at DESC LIMIT 1
"""
TOPICS = """
SELECT topic, count(*) FROM (SELECT topic FROM message WHERE state = ? ORDER BY due LIMIT 10000)
GROUP BY topic ORDER BY count(*) DESC, topic LIMIT ?
"""
"""The topics of what waits, of the first that are due: to look at all of them takes seconds."""
SUMS = "minute, topic, level, reason, waiting, committed, dead, redriven"
MINUTES = """
SELECT minute, sum(waiting), sum(committed), sum(dead) FROM sums WHERE minute >= ? AND minute < ? GROUP BY minute
"""


class BadCursorError(ValueError):
    """Raised if a text is no cursor."""


class Filters(NamedTuple):
    """The conditions of a list. A message must meet all that are given.

    `due_before` is epoch ms; a message without a due time does not meet it.
    """

    state: State | None = None
    level: str | None = None
    topic: str | None = None
    reason: str | None = None
    due_before: int | None = None


class Page(NamedTuple):
    """A part of a list, as JSON values. `cursor` is where the next page begins, None at the end."""

    values: list[bytes]
    cursor: str | None


class LevelWaits(NamedTuple):
    """What waits in a level: how many records, how many of them are due, and the first and the last due time."""

    level: str
    records: int
    due: int
    first: int
    last: int


class DeadLetters(NamedTuple):
    """The dead letters of one reason: how many, and which one is the newest, when it died (epoch ms), and why."""

    reason: str
    records: int
    id: str
    at: int
    text: str


class Failures(NamedTuple):
    """Records whose last failure was within a window, by its reason. The most frequent reasons come first."""

    total: int
    reasons: tuple[tuple[str, int], ...]


class Minute(NamedTuple):
    """The counts of one minute; `begin` is its start in epoch ms."""

    begin: int
    waiting: int
    committed: int
    dead: int


class _List(NamedTuple):
    """A table in an order, the SQL conditions with their values, and how the `columns` of a row become its JSON."""

    table: str
    order: str
    terms: list[str]
    values: list[Any]
    columns: str
    encoded: Callable[[tuple[Any, ...]], bytes]


class ViewQuery:
    """One open file for queries. Raises sqlite3.Error if the file is being rebuilt or a query takes too long."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def message(self, key: str) -> bytes | None:
        """Return the VIEW value of a message; None if it is not in the view."""
        row = self._connection.execute("SELECT value FROM message WHERE id = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def messages(self, filters: Filters, limit: int, cursor: str | None = None) -> Page:
        """Return a page of messages, the earliest due first. Raises BadCursorError."""
        filtered = {name: value for name, value in filters._asdict().items() if value is not None}
        due_before = filtered.pop("due_before", None)
        terms, values = [f"{name} = ?" for name in filtered], [str(value) for value in filtered.values()]
        where: list[Any] = [*values]
        if due_before is not None:
            terms.append("due > 0 AND due < ?")
            where.append(due_before)
        return self._page(_List("message", "due", terms, where, "value", lambda row: bytes(row[0])), limit, cursor)

    def sums(self, since: int, limit: int, cursor: str | None = None) -> Page:
        """Return the sums of the minutes that begin at `since` (epoch ms) or later, the oldest first.

        A cursor continues from its minute, whatever `since` is by then: "an hour ago" moves from page to page. Raises
        BadCursorError.
        """
        return self._page(_List("sums", "minute", ["minute >= ?"], [since], SUMS, self._sums_json), limit, cursor)

    def every_message(self, filters: Filters, most: int | None = None) -> Iterator[bytes]:
        """Yield the messages, the earliest due first; at most `most`. Only a page of them is in memory at a time."""
        return _every(partial(self.messages, filters), most)

    def every_sum(self, since: int, most: int | None = None) -> Iterator[bytes]:
        """Yield the sums of the minutes since then (epoch ms), the oldest first; at most `most`."""
        return _every(partial(self.sums, since), most)

    def failures(self, since: int, until: int) -> Failures:
        """Return how many records failed last after `since`, up to `until` (epoch ms), by reason."""
        where = "FROM message WHERE last_failed_at > ? AND last_failed_at <= ?"
        (total,) = self._connection.execute(f"SELECT count(*) {where}", (since, until)).fetchone()
        order = "GROUP BY reason ORDER BY count(*) DESC, reason LIMIT ?"
        rows = self._connection.execute(f"SELECT reason, count(*) {where} {order}", (since, until, MOST_REASONS))
        return Failures(total, tuple((reason, count) for reason, count in rows))

    def counts(self) -> dict[str, int]:
        """Return how many messages are in each state."""
        return dict(self._connection.execute("SELECT state, count(*) FROM message GROUP BY state"))

    def parked(self) -> int:
        """Return how many records are parked: they wait, and are never due."""
        return int(self._connection.execute(PARKED, (State.WAITING_RETRY,)).fetchone()[0])

    def levels(self, now: int) -> list[LevelWaits]:
        """Return what waits in each level, as of `now` (epoch ms), by the level's name; at most MOST_LEVELS levels."""
        return [LevelWaits(*row) for row in self._connection.execute(LEVELS, (now, MOST_LEVELS))]

    def dead(self, most: int) -> list[DeadLetters]:
        """Return how many records are dead letters now, by reason, the most frequent first; at most `most` reasons."""
        rows = self._connection.execute(DEAD, (most,)).fetchall()
        return [
            DeadLetters(reason, count, *self._connection.execute(NEWEST_DEAD, (reason,)).fetchone())
            for reason, count in rows
        ]

    def topics(self, most: int) -> list[tuple[str, int]]:
        """Return the topics of which most waits, with how many records; at most `most`."""
        return list(self._connection.execute(TOPICS, (State.WAITING_RETRY, most)))

    def minutes(self, first: int, end: int) -> list[Minute]:
        """Return the counts of each minute from `first` up to `end` (epoch ms), over all topics, levels and reasons;
        minutes without any are left out."""
        return [Minute(*row) for row in self._connection.execute(MINUTES, (first, end))]

    def _page(self, rows_of: _List, limit: int, cursor: str | None) -> Page:
        # By the row's number behind the first column: SQLite appends it to every index for free, while the id in each
        # index doubled the cost of a write.
        terms, values, order = list(rows_of.terms), list(rows_of.values), f"{rows_of.order}, number"
        if cursor is not None:
            terms.append(f"({order}) > (?, ?)")
            values += position_in(cursor)
        text = f"WHERE {' AND '.join(terms)}" if terms else ""
        query = f"SELECT {order}, {rows_of.columns} FROM {rows_of.table} {text} ORDER BY {order} LIMIT ?"
        # One row more than the limit shows whether there is another page.
        rows = self._connection.execute(query, (*values, limit + 1))
        page, last, size = list[bytes](), (0, 0), 0
        for due, number, *columns in rows:
            if len(page) == limit or size > LONGEST_PAGE:
                return Page(page, ".".join(map(str, last)))
            page.append(value := rows_of.encoded(tuple(columns)))
            last, size = (due, number), size + len(value)
        return Page(page, None)

    def _sums_json(self, row: tuple[Any, ...]) -> bytes:
        minute, topic, level, reason, *counts = row
        return encode_row(StatsRow(self._fact("group"), minute, topic, level or None, reason, *counts))

    def _fact(self, name: str) -> Any:
        (value,) = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return value


def position_in(cursor: str) -> tuple[int, int]:
    """Return where a list goes on: the due time or minute of the last row, and its number. Raises BadCursorError."""
    match = CURSOR.fullmatch(cursor)
    position = (0, LARGEST_LONG + 1) if match is None else (int(match[1]), int(match[2]))
    if max(position) > LARGEST_LONG:
        raise BadCursorError
    return position


def _every(page_of: Callable[[int, str | None], Page], most: int | None) -> Iterator[bytes]:
    remaining, cursor = most, None
    while remaining is None or remaining > 0:
        page = page_of(PAGE if remaining is None else min(PAGE, remaining), cursor)
        yield from page.values
        remaining = None if remaining is None else remaining - len(page.values)
        if (cursor := page.cursor) is None:
            return


@contextmanager
def questions(path: Path, within: float = LONGEST) -> Iterator[ViewQuery]:
    """Open the file for queries that take at most `within` seconds together. Raises sqlite3.Error.

    Without a limit SQLite calls nothing of ours: it would swallow the exception by which a signal ends a command.
    """
    deadline = time.monotonic() + within
    address = f"file:{quote(str(path))}?mode=ro"
    with reading(path), closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        if within < inf:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
        yield ViewQuery(connection)


# --- queries of a server ----------------------------------------------------------------------------------------------

THREADS = 2
MOST_WAITING = 32
"""Queries at once. Each may take seconds, and memory for 1 000 rows."""


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
