"""Open the file of a local copy: one that no other process uses, with what an earlier start left in it.

Queries of a local copy, and the opening of a new file instead, take turns. SQLite knows a file by its inode, and its
log (`-wal`, `-shm`) by its path. A connection to a former file of the same name would take the new file's log for its
own, and cut it off: any access to it then ends the process with SIGBUS. SQLite's own locks do not help, as those of
POSIX hold between processes alone.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from reconsume.sidecar.files import TemporaryFolder, open_private, private_folder
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import BOUND, Bound, ViewStore

# --- turns -----------------------------------------------------------------------------------------------------------


WITHIN = 10.0
"""Seconds. Queries of the running sidecar take at most 5."""

_changed = threading.Condition()
_readers: Counter[Path] = Counter()
_being_opened: set[Path] = set()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a file where it is. Raises sqlite3.OperationalError while it is opened anew."""
    with _changed:
        if path in _being_opened:
            raise sqlite3.OperationalError("the file is being opened anew")
        _readers[path] += 1
    try:
        yield
    finally:
        with _changed:
            _readers.subtract([path])
            if not _readers[path]:
                del _readers[path]
            _changed.notify_all()


@contextmanager
def opening(path: Path, within: float = WITHIN) -> Iterator[None]:
    """Wait until nobody reads, and let nobody begin. Raises sqlite3.OperationalError if that takes longer."""
    with _changed:
        _being_opened.add(path)
    try:
        with _changed:
            if not _changed.wait_for(lambda: not _readers[path], within):
                raise sqlite3.OperationalError(f"queries still read the former file after {within:g} s")
        yield
    finally:
        with _changed:
            _being_opened.remove(path)


# --- the file --------------------------------------------------------------------------------------------------------


MOST_FILES = 64
"""Files of one group in one folder. Each running sidecar has its own."""
FILES = {Source.SPARK: "view", Source.EVENTS: "events"}
"""The word in the name of a file, by what it is made from. A copy of the one never becomes a copy of the other."""

_LOG = logging.getLogger("reconsume.view")


def open_store(folder: Path | None, group: str, source: Source = Source.SPARK, bound: Bound = BOUND) -> ViewStore:
    """Open a file that no other sidecar uses, with what an earlier start left in it. Raises OSError, sqlite3.Error.

    The file is in a folder of this user's own in `folder`, which others may write to. None: in a temporary folder,
    which is removed when the store is closed. `source`: what it is made from.
    """
    temporary = None
    if folder is None:
        temporary = TemporaryFolder("reconsume-view-")
        own = temporary.path
    else:
        own = private_folder(folder)
    name, lock = _lock_file(own, f"{group}-{FILES[source]}")
    try:
        with opening(path := own / f"{name}.sqlite"):
            return _opened(path, lock, temporary, bound)
    except BaseException:
        lock.close()
        raise


def _lock_file(folder: Path, prefix: str) -> tuple[str, IO[bytes]]:
    """Return the first name that no process holds, with its lock. The lock ends with the process, however it ends."""
    for number in range(MOST_FILES):
        name = f"{prefix}-{number}"
        lock = open_private(folder / f"{name}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return name, lock
    raise OSError(f"all {MOST_FILES} files for the view in {folder} are in use")


def _opened(path: Path, lock: IO[bytes], temporary: TemporaryFolder | None, bound: Bound) -> ViewStore:
    """Open the file as it is, or create a new one if it is broken."""
    try:
        return ViewStore(path, lock, temporary, bound)
    except sqlite3.OperationalError:
        raise  # the disk is full or may not be written: a new file would fail as well
    except sqlite3.DatabaseError as fault:
        _LOG.warning(
            "the local copy of the view cannot be used and is read again: %s", fault, extra={"event": "view-rebuilt"}
        )
        remove(path)
        return ViewStore(path, lock, temporary, bound)


def remove(path: Path) -> None:
    """Remove a file with its log."""
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
