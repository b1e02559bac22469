"""Open the file of a local copy: one that no other process uses, with what an earlier start left in it."""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from pathlib import Path
from typing import IO

from reconsume.sidecar.files import TemporaryFolder, open_private, private_folder
from reconsume.sidecar.view.file_turns import opening
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import BOUND, Bound, ViewStore

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
