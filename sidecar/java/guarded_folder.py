"""The temporary folder of a Spark job: secrets, logs and all that Spark itself keeps on disk for a while.

It is removed however the job ends: by this process, by the guard that outlives it, and where a whole container was
killed, by the next job that starts there. The kernel tells which folders are in use: each is locked by its process, and
a folder's name tells the kernel, because another machine that shares the disk does not see such a lock (NFS locks no
folders).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from reconsume.sidecar.files import temporary_path
from reconsume.sidecar.java.orphan_guard import OrphanGuard

PREFIX = "reconsume-view-"
KERNEL = Path("/proc/sys/kernel/random/boot_id")
"""What is another one on each machine, and after each start of it; the containers of a machine share it."""
WITHOUT_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
"""Errors of a file system that locks no folders. There nobody can lock one of another process either."""
YOUNG = 60.0
"""Seconds for which a folder that is not locked is let be: its process may be about to lock it."""


class GuardedFolder(NamedTuple):
    """A private folder that is removed when this process ends, and the guard that ends the started processes."""

    folder: Path
    guard: OrphanGuard


@contextmanager
def guarded_folder() -> Iterator[GuardedFolder]:
    """Yield a folder of this process alone. It is removed, however this process ends."""
    prefix = f"{PREFIX}{_kernel()}-"
    remove_left_behind(prefix)
    folder = temporary_path(prefix)
    guard = OrphanGuard(folder)
    try:
        folder.mkdir(mode=0o700)
        with _locked(folder, may_fail=True):
            yield GuardedFolder(folder, guard)
    finally:
        guard.close()


def remove_left_behind(prefix: str) -> None:
    """Remove this user's folders of this prefix whose processes and guards are gone, as in a container that ended.

    A pod's `/tmp` outlives its containers: one that is killed again and again would fill it.
    """
    left_behind = re.compile(re.escape(prefix) + r"[0-9a-f]{16}")  # as `temporary_path` makes it
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another process removes it too, or it is none of ours
            if left_behind.fullmatch(folder.name) and _is_old(folder):
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    status = folder.lstat()
    return status.st_uid == os.getuid() and time.time() - status.st_mtime > YOUNG


def _kernel() -> str:
    """Return a text by which processes know whether they see each other's locks."""
    try:
        boot = KERNEL.read_bytes()
    except OSError:  # not Linux
        boot = os.uname().nodename.encode()
    return hashlib.sha256(boot).hexdigest()[:8]


@contextmanager
def _locked(folder: Path, *, may_fail: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which ends with this process. Raises OSError if it is held, or is no folder.

    `may_fail`: go on without it on a file system that has no such locks, instead of raising OSError.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(handle, may_fail)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, may_fail: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not may_fail or error.errno not in WITHOUT_LOCKS:
            raise
