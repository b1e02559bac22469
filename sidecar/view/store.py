"""The local copy of the view: one SQLite file, written by one thread, rebuilt from Kafka if it is lost or broken.

Rows, sums and the offsets up to which they were read are one transaction. What a crash loses or breaks is read anew.
Queries are in `query.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

from reconsume.sidecar.files import TemporaryFolder
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.view.tables import (
    PASSED_OVER,
    PUT_MESSAGE,
    PUT_SUMS,
    TABLE,
    TABLES_OF,
    Item,
    connect,
    fold_in,
    message_values,
    sums_values,
)
from reconsume.topics.events import State
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten

LEFT_OUT = "left-out"
"""The fact that holds how many events were of records that had no room."""
GIVEN_UP = "given-up"
"""The fact that holds how many done records have made room for others."""


class Facts(NamedTuple):
    """The known state of the copy.

    `as_of`: epoch ms up to which it is complete; None if it was never read to the end. `newest`: epoch ms of the newest
    row. `since`: epoch ms from which on it has every event; 0 if it has all that were ever written.
    """

    as_of: int | None
    newest: int
    since: int = 0


class Bound(NamedTuple):
    """How much a copy that is made from events may hold: records, and bytes of its file."""

    records: int = 2_000_000
    bytes: int = 2_000_000_000

    @property
    def step(self) -> int:
        """Done records that make room at a time; room is made when so much is left."""
        return max(1, self.records // 20)


BOUND = Bound()


class Missing(NamedTuple):
    """What a copy lacks: done records that made room for others, and events of records that had no room."""

    done: int
    events: int


class ViewStore:
    """An open file. All calls must come from the thread that opened it; each raises sqlite3.Error.

    `temporary`: the folder of a file that is removed when the store is closed.
    """

    def __init__(self, path: Path, lock: IO[bytes], temporary: TemporaryFolder | None, bound: Bound = BOUND) -> None:
        self.path = path
        self._lock, self._temporary, self._bound = lock, temporary, bound
        self._connection = connect(path)
        self._inode = path.stat().st_ino
        (self._records,) = self._connection.execute("SELECT count(*) FROM message").fetchone()

    # --- what is known -----------------------------------------------------------------------------------------------

    def positions(self) -> dict[PartitionName, int]:
        """Return the next offset of each partition that was read."""
        rows = self._connection.execute("SELECT topic, number, next FROM position")
        return {(topic, number): after for topic, number, after in rows}

    def facts(self) -> Facts:
        """Return what is known of the copy."""
        return Facts(self._fact("as_of"), self._fact("newest") or 0, self._fact("since") or 0)

    @property
    def missing(self) -> Missing:
        """What the copy lacks because of its bound."""
        return Missing(self._fact(GIVEN_UP) or 0, self._fact(LEFT_OUT) or 0)

    @property
    def tight(self) -> bool:
        """Whether room should be made soon."""
        return self._room() <= self._bound.step

    def identity(self, kind: Kind) -> str | None:
        """Return the id that Kafka gave the topic that was read; None before any was read."""
        stored: str | None = self._fact(f"identity-{kind}")
        return stored

    def intact(self) -> bool:
        """Whether the file still lies where readers look for it."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    # --- what changes it ---------------------------------------------------------------------------------------------

    def begin_anew(self, kind: Kind, topic: str, identity: str) -> None:
        """Delete all that was read from the topic: it is another topic now."""
        # A row survives any order and repetition of its events, a sum does not. So rows, sums and positions are one
        # transaction.
        with self._transaction() as run:
            for table in TABLES_OF[kind]:
                run.execute(f"DELETE FROM {table}")
            run.execute("DELETE FROM position WHERE topic = ?", (topic,))
            self._note(f"identity-{kind}", identity)
            if kind in (Kind.VIEW, Kind.EVENTS):
                run.execute("DELETE FROM fact WHERE name IN ('as_of', 'newest', 'since', ?, ?)", (LEFT_OUT, GIVEN_UP))
        self._recount()

    def take(
        self, items: Sequence[Item], positions: Mapping[PartitionName, int], passed_over: int | None = None
    ) -> None:
        """Store records in the order in which they were read, and the next offsets, in one transaction.

        `passed_over` is the lowest `v` of the records among them that only a newer version can read. That version will
        read everything anew.
        """
        with self._transaction() as run:
            for (kind, gone), group in groupby(items, lambda item: (item.kind, isinstance(item.value, Forgotten))):
                if gone:
                    column = "id" if kind is Kind.VIEW else "key"
                    keys = [(item.key,) for item in group]
                    run.executemany(f"DELETE FROM {TABLE[kind]} WHERE {column} = ?", keys)
                elif kind is Kind.VIEW:
                    run.executemany(PUT_MESSAGE, map(message_values, group))
                else:
                    run.executemany(PUT_SUMS, map(sums_values, group))
            self._went_on(run, positions, passed_over)

    def take_events(
        self, items: Sequence[Item], positions: Mapping[PartitionName, int], since: int, passed_over: int | None = None
    ) -> list[Item]:
        """Fold events, in any order, into the rows and the sums, and store the next offsets, in one transaction.

        `since` is that of the facts. Return the rows that have changed, as items of the view. Events of new records
        are left out while the copy holds as much as it may.
        """
        with self._transaction() as run:
            done = fold_in(run, items, self._room())
            self._went_on(run, positions, passed_over)
            self._note("since", since)
            if done.left_out:
                self._note(LEFT_OUT, self.missing.events + done.left_out)
        self._records += done.new
        return done.rows

    def make_room(self) -> None:
        """Delete the oldest of the done records. Those that wait or are dead are what the copy is for."""
        oldest = "SELECT number FROM message WHERE state = ? ORDER BY written LIMIT ?"
        with self._transaction() as run:
            done = run.execute(f"DELETE FROM message WHERE number IN ({oldest})", (State.COMMIT, self._bound.step))
            if done.rowcount:
                self._note(GIVEN_UP, self.missing.done + done.rowcount)
        self._recount()

    def drop_older(self, kind: Kind, before: int) -> None:
        """Delete what was written before this time (epoch ms): by its retention it leaves the topic too."""
        with self._transaction() as run:
            run.execute(f"DELETE FROM {TABLE[kind]} WHERE written < ?", (before,))
        self._recount()

    def note(self, facts: Facts) -> None:
        """Store what is known, for the next start."""
        with self._transaction():
            for name, value in facts._asdict().items():
                self._note(name, value)

    def close(self) -> None:
        """Close the file, whose name another sidecar may then have. Remove a temporary file."""
        self._connection.close()
        self._lock.close()
        if self._temporary is not None:
            self._temporary.remove()

    def _went_on(
        self, run: sqlite3.Connection, positions: Mapping[PartitionName, int], passed_over: int | None
    ) -> None:
        run.executemany(
            "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
            [(topic, number, after) for (topic, number), after in positions.items()],
        )
        if passed_over is not None:
            self._note(PASSED_OVER, min(passed_over, self._fact(PASSED_OVER) or passed_over))

    def _room(self) -> int:
        """Return how many more records may be taken."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return max(0, self._bound.records - self._records) if (pages - free) * size < self._bound.bytes else 0

    def _recount(self) -> None:
        (self._records,) = self._connection.execute("SELECT count(*) FROM message").fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _fact(self, name: str) -> Any:
        row = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _note(self, name: str, value: object) -> None:
        self._connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))


def retention_of(config: Mapping[str, str]) -> int | None:
    """Return after how many ms a topic with these settings deletes its records; None if never."""
    if "delete" not in config.get("cleanup.policy", ""):
        return None
    text = config.get("retention.ms", "")
    return int(text) if text.isdecimal() else None
