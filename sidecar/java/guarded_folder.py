"""The temporary folder of a Spark job: secrets, logs and all that Spark itself keeps on disk for a while.

It is removed however the job ends: by this process, by the guard that outlives it, and where a whole container was
killed, by the next job that starts there. The kernel tells which folders are in use: each is locked by its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sidecar.files import temporary_path
from sidecar.java.orphan_guard import OrphanGuard

PREFIX = "reconsume-view-"
LEFT_BEHIND = re.compile(re.escape(PREFIX) + r"[0-9a-f]{16}")
"""What `temporary_path` makes of the prefix."""
YOUNG = 60.0
"""Seconds for which a folder that is not locked is let be: its process may be about to lock it."""


class GuardedFolder(NamedTuple):
    """A private folder that is removed when this process ends, and the guard that ends the started processes."""

    folder: Path
    guard: OrphanGuard


@contextmanager
def guarded_folder() -> Iterator[GuardedFolder]:
    """Yield a folder of this process alone. It is removed, however this process ends."""
    remove_left_behind()
    folder = temporary_path(PREFIX)
    guard = OrphanGuard(folder)
    try:
        folder.mkdir(mode=0o700)
        with _locked(folder):
            yield GuardedFolder(folder, guard)
    finally:
        guard.close()


def remove_left_behind() -> None:
    """Remove this user's folders whose processes are gone, and their guards with them, as in a container that ended.

    A pod's `/tmp` outlives its containers: one that is killed again and again would fill it.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process removes it too, or it is none of ours
            if LEFT_BEHIND.fullmatch(folder.name) and _is_old(folder):
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    status = folder.lstat()
    return status.st_uid == os.getuid() and time.time() - status.st_mtime > YOUNG


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with this process. Raises OSError if it is held, or is no folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
