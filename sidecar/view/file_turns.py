"""Queries of a local copy, and the opening of a new file instead, take turns.

SQLite knows a file by its inode, and its log (`-wal`, `-shm`) by its path. A connection to a former file of the same
name would take the new file's log for its own, and cut it off: any access to it then ends the process with SIGBUS.
SQLite's own locks do not help, as those of POSIX hold between processes alone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHIN = 10.0
"""Seconds. Queries of the running sidecar take at most 5."""

_changed = threading.Condition()
_readers: Counter[Path] = Counter()
_opened: set[Path] = set()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a file where it is. Raises sqlite3.OperationalError while it is opened anew."""
    with _changed:
        if path in _opened:
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
        _opened.add(path)
    try:
        with _changed:
            if not _changed.wait_for(lambda: not _readers[path], within):
                raise sqlite3.OperationalError(f"queries still read the former file after {within:g} s")
        yield
    finally:
        with _changed:
            _opened.remove(path)
