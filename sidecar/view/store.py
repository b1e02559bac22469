"""The local copy of the view: one SQLite file, written by one thread, rebuilt from Kafka whenever it is lost or broken.

Rows, sums and the offsets up to which they were read are one transaction. Questions are `query.py`. What a crash loses
or breaks is read anew.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from sidecar.view.tables import PASSED_OVER, PUT_MESSAGE, PUT_SUMS, TABLE, Item, connect, message_values, sums_values
from topics.names import Kind
from topics.view_record import Forgotten

SLOTS = 64
"""Files of one group in one folder: each running sidecar has one to itself."""
Place: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""

_LOG = logging.getLogger("reconsume.view")


class Facts(NamedTuple):
    """What is known of the copy. `as_of`: epoch ms up to which it is complete; None: never read to the end yet."""

    as_of: int | None
    newest: int


class ViewStore:
    """An open file. All calls from the thread that opened it; each raises sqlite3.Error."""

    def __init__(self, path: Path, lock: IO[bytes], temporary: bool) -> None:
        self.path = path
        self._lock, self._temporary = lock, temporary
        self._connection = connect(path)
        self._inode = path.stat().st_ino

    # --- what is known -----------------------------------------------------------------------------------------------

    def positions(self) -> dict[Place, int]:
        """The next offset of each partition that was read."""
        found = self._connection.execute("SELECT topic, number, next FROM position")
        return {(topic, number): after for topic, number, after in found}

    def facts(self) -> Facts:
        """Since when, and up to when, it is known."""
        return Facts(self._fact("as_of"), self._fact("newest") or 0)

    def identity(self, kind: Kind) -> str | None:
        """Which topic it was read from, by the id that Kafka gave it; None before."""
        found: str | None = self._fact(f"identity-{kind}")
        return found

    def intact(self) -> bool:
        """Whether the file still lies where readers look for it."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    # --- what changes it ---------------------------------------------------------------------------------------------

    def begin_anew(self, kind: Kind, topic: str, identity: str) -> None:
        """Forget all that was read from the topic: it is another one now."""
        with self._transaction() as run:
            run.execute(f"DELETE FROM {TABLE[kind]}")
            run.execute("DELETE FROM position WHERE topic = ?", (topic,))
            self._note(f"identity-{kind}", identity)
            if kind is Kind.VIEW:
                run.execute("DELETE FROM fact WHERE name IN ('as_of', 'newest')")

    def take(self, items: Sequence[Item], positions: Mapping[Place, int], passed_over: int | None = None) -> None:
        """Take in records in the order in which they were read, and where to go on, all or nothing.

        `passed_over` is the lowest `v` of records among them that only a newer version can read: it will read all anew.
        """
        with self._transaction() as run:
            for (kind, gone), group in groupby(items, lambda item: (item.kind, isinstance(item.heard, Forgotten))):
                if gone:
                    column = "id" if kind is Kind.VIEW else "key"
                    keys = [(item.key,) for item in group]
                    run.executemany(f"DELETE FROM {TABLE[kind]} WHERE {column} = ?", keys)
                elif kind is Kind.VIEW:
                    run.executemany(PUT_MESSAGE, map(message_values, group))
                else:
                    run.executemany(PUT_SUMS, map(sums_values, group))
            run.executemany(
                "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
                [(topic, number, after) for (topic, number), after in positions.items()],
            )
            if passed_over is not None:
                self._note(PASSED_OVER, min(passed_over, self._fact(PASSED_OVER) or passed_over))

    def drop_older(self, kind: Kind, before: int) -> None:
        """Drop what was written before (epoch ms): it leaves the topic by its retention."""
        with self._transaction() as run:
            run.execute(f"DELETE FROM {TABLE[kind]} WHERE written < ?", (before,))

    def note(self, facts: Facts) -> None:
        """Keep what is known, for the next start."""
        with self._transaction():
            self._note("as_of", facts.as_of)
            self._note("newest", facts.newest)

    def close(self) -> None:
        """Close the file and give its place to others; a temporary one is removed."""
        self._connection.close()
        self._lock.close()
        if self._temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)

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


def open_store(folder: Path | None, group: str) -> ViewStore:
    """A file that no other sidecar uses, with what an earlier start left in it. Raises OSError, sqlite3.Error.

    `folder` None: a temporary one, which goes when the store is closed.
    """
    place = Path(tempfile.mkdtemp(prefix="reconsume-view-")) if folder is None else folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    name, lock = _slot(place, group)
    try:
        return _opened(place / f"{name}.sqlite", lock, folder is None)
    except BaseException:
        lock.close()
        raise


def _slot(folder: Path, group: str) -> tuple[str, IO[bytes]]:
    """The first name that nobody holds. The lock goes with the process, however it ends."""
    for number in range(SLOTS):
        name = f"{group}-view-{number}"
        lock = (folder / f"{name}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return name, lock
    raise OSError(f"all {SLOTS} files for the view in {folder} are in use")


def _opened(path: Path, lock: IO[bytes], temporary: bool) -> ViewStore:
    """The file as it is, or a new one where it is broken."""
    try:
        return ViewStore(path, lock, temporary)
    except sqlite3.OperationalError:
        raise  # the disk is full, or not ours to write: a new file would fare no better
    except sqlite3.DatabaseError as fault:
        _LOG.warning("the copy of the view is of no use, and read anew: %s", fault, extra={"event": "view-rebuilt"})
        remove(path)
        return ViewStore(path, lock, temporary)


def remove(path: Path) -> None:
    """Remove a file with its log."""
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def retention_of(config: Mapping[str, str]) -> int | None:
    """After how many ms a topic of these settings forgets its records; None: never."""
    if "delete" not in config.get("cleanup.policy", ""):
        return None
    text = config.get("retention.ms", "")
    return int(text) if text.isdecimal() else None
