"""The local copy of the view: one SQLite file, written by one thread, rebuilt from Kafka if it is lost or broken.

Rows, sums and the offsets up to which they were read are one transaction. What a crash loses or breaks is read anew.
Queries are in `query.py`.
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
from typing import IO, Any, NamedTuple

from sidecar.kafka.admin.descriptions import Place
from sidecar.view.file_turns import opening
from sidecar.view.tables import PASSED_OVER, PUT_MESSAGE, PUT_SUMS, TABLE, Item, connect, message_values, sums_values
from topics.names import Kind
from topics.view_record import Forgotten

SLOTS = 64
"""Files of one group in one folder. Each running sidecar has its own."""

_LOG = logging.getLogger("reconsume.view")


class Facts(NamedTuple):
    """The known state of the copy.

    `as_of`: epoch ms up to which it is complete; None if it was never read to the end. `newest`: epoch ms of the newest
    row.
    """

    as_of: int | None
    newest: int


class ViewStore:
    """An open file. All calls must come from the thread that opened it; each raises sqlite3.Error."""

    def __init__(self, path: Path, lock: IO[bytes], temporary: bool) -> None:
        self.path = path
        self._lock, self._temporary = lock, temporary
        self._connection = connect(path)
        self._inode = path.stat().st_ino

    # --- what is known -----------------------------------------------------------------------------------------------

    def positions(self) -> dict[Place, int]:
        """Return the next offset of each partition that was read."""
        found = self._connection.execute("SELECT topic, number, next FROM position")
        return {(topic, number): after for topic, number, after in found}

    def facts(self) -> Facts:
        """Return what is known of the copy."""
        return Facts(self._fact("as_of"), self._fact("newest") or 0)

    def identity(self, kind: Kind) -> str | None:
        """Return the id that Kafka gave the topic that was read; None before any was read."""
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
        """Delete all that was read from the topic: it is another topic now."""
        with self._transaction() as run:
            run.execute(f"DELETE FROM {TABLE[kind]}")
            run.execute("DELETE FROM position WHERE topic = ?", (topic,))
            self._note(f"identity-{kind}", identity)
            if kind is Kind.VIEW:
                run.execute("DELETE FROM fact WHERE name IN ('as_of', 'newest')")

    def take(self, items: Sequence[Item], positions: Mapping[Place, int], passed_over: int | None = None) -> None:
        """Store records in the order in which they were read, and the next offsets, in one transaction.

        `passed_over` is the lowest `v` of the records among them that only a newer version can read. That version will
        read everything anew.
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
        """Delete what was written before this time (epoch ms): by its retention it leaves the topic too."""
        with self._transaction() as run:
            run.execute(f"DELETE FROM {TABLE[kind]} WHERE written < ?", (before,))

    def note(self, facts: Facts) -> None:
        """Store what is known, for the next start."""
        with self._transaction():
            self._note("as_of", facts.as_of)
            self._note("newest", facts.newest)

    def close(self) -> None:
        """Close the file and release its slot for other sidecars. Remove a temporary file."""
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
    """Open a file that no other sidecar uses, with what an earlier start left in it. Raises OSError, sqlite3.Error.

    `folder` is None for a temporary folder, which is removed when the store is closed.
    """
    place = Path(tempfile.mkdtemp(prefix="reconsume-view-")) if folder is None else folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    name, lock = _slot(place, group)
    try:
        with opening(path := place / f"{name}.sqlite"):
            return _opened(path, lock, folder is None)
    except BaseException:
        lock.close()
        raise


def _slot(folder: Path, group: str) -> tuple[str, IO[bytes]]:
    """Return the first name that no process holds, with its lock. The lock ends with the process, however it ends."""
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
    """Open the file as it is, or create a new one if it is broken."""
    try:
        return ViewStore(path, lock, temporary)
    except sqlite3.OperationalError:
        raise  # the disk is full or may not be written: a new file would fail as well
    except sqlite3.DatabaseError as fault:
        _LOG.warning(
            "the local copy of the view cannot be used and is read again: %s", fault, extra={"event": "view-rebuilt"}
        )
        remove(path)
        return ViewStore(path, lock, temporary)


def remove(path: Path) -> None:
    """Remove a file with its log."""
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def retention_of(config: Mapping[str, str]) -> int | None:
    """Return after how many ms a topic with these settings deletes its records; None if never."""
    if "delete" not in config.get("cleanup.policy", ""):
        return None
    text = config.get("retention.ms", "")
    return int(text) if text.isdecimal() else None
