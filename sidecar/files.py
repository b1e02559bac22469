"""Open files that others could have prepared: without waiting, without following links, and within bounds.

Reading: a file that an operator or a mount gives. Writing, and files that are locks: `open_private`, and no other way
(`tests/unit/test_written_files.py` finds any other). Where another user may write to a folder, a link there would have
us write elsewhere, a pipe would stop us, and a prepared file would be theirs. So what is written is a plain file of
this user, and in a folder that others share there is a folder of our own (`private_folder`). Only in the folder that
an operator works in, what a link there points to is written (`replace_file`).

A pipe without a writer never ends an open, a device never ends, and a folder is no file. Whoever writes where a path
points could stop the probes with them, so only plain files are opened. The one exception are pipes that the user's own
shell hands to a command, as in `--plan <(…)`.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

CHUNK = 1024 * 1024
HANDED = ("/dev/fd/", "/proc/self/fd/")
"""Where a shell puts the pipes of `<(…)`."""
KINDS = (
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe, and no plain file"),
    (stat.S_ISSOCK, "it is a socket, and no plain file"),
)
DEVICE = "it is a device, and no plain file"


class TemporaryFolder:
    """A folder that only this user can read, and that is gone after the process, also if a signal ends it.

    `path` is removed by `remove`, when nothing refers to this object any more, or at the exit of the interpreter. The
    removal is arranged before the folder is made: a signal may raise an exception between any two steps.
    """

    def __init__(self, prefix: str) -> None:
        self.path = temporary_path(prefix)
        self._removal = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the folder with all that is in it. What a signal interrupts is done at the exit."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._removal.detach()


def temporary_path(prefix: str) -> Path:
    """Return the name of a temporary folder that is yet to be made, by whoever has first arranged its removal."""
    return Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; empty at its end."""


def read_plain(path: Path, most: int) -> bytes:
    """Return the content of a plain file of at most `most` bytes.

    Raises OSError, whose `strerror` ends the sentence "it cannot be read: …".
    """
    with open_plain(path) as file:
        return read_stream(file, most)


def read_given(path: Path, most: int) -> bytes:
    """Return the content of a file on a command line, as `read_plain` does. It may also be a pipe of the shell's."""
    if str(path).startswith(HANDED) or str(path) == "/dev/stdin":
        with path.open("rb", buffering=0) as file:
            return read_stream(file, most)
    return read_plain(path, most)


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raises OSError if it is none, or cannot be opened. Never waits."""
    _expect_plain(path.stat().st_mode)  # before it is opened: to open a device may already do something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _expect_plain(os.fstat(handle).st_mode)  # another file may have replaced it
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_private(path: Path, mode: Literal["ab", "wb", "r+b"] = "ab") -> BinaryIO:
    """Open a plain file of this user for writing, or as a lock; make one that only this user can read.

    `ab` appends, `wb` empties the file, `r+b` keeps what it holds. Never waits and follows no link. Raises OSError if
    the path is anything else.
    """
    with suppress(FileNotFoundError):
        _expect_own(path.lstat())  # before it is opened: to open a device may already do something
    access = {"ab": os.O_WRONLY | os.O_APPEND, "wb": os.O_WRONLY, "r+b": os.O_RDWR}[mode]
    handle = os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    try:
        _expect_own(os.fstat(handle))  # another file may have replaced it
        if mode == "wb":
            os.ftruncate(handle, 0)
        return os.fdopen(handle, mode)
    except BaseException:
        os.close(handle)
        raise


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, in place of what it held. Raises OSError as `open_private` does."""
    with open_private(path, "wb") as file:
        file.write(text.encode("utf-8"))


def replace_file(path: Path, text: str) -> None:
    """Write a file of the operator's own project, whole or not at all. Where a link points, that file is written.

    One that is there keeps its mode, and is not touched if it has this text. Raises OSError.
    """
    path, content = path.resolve(), text.encode("utf-8")
    there = path.exists()
    if there and path.read_bytes() == content:
        return
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with fresh.open("xb") as file:
        file.write(content)
    if there:
        fresh.chmod(path.stat().st_mode)
    fresh.replace(path)


def private_folder(shared: Path) -> Path:
    """Return this user's own folder in a folder that others may write to; make both if they are missing.

    The own folder is for this user alone (0700). Raises OSError if something else has its name: a link, a file, or a
    folder of another user.
    """
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = shared / f"reconsume-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    named = folder.lstat()
    if not stat.S_ISDIR(named.st_mode):
        raise OSError(errno.ENOTDIR, "it is no folder, or a link to one", str(folder))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it belongs to another user", str(folder))
        if stat.S_IMODE(status.st_mode) != 0o700:  # Kubernetes opens what a volume holds to its group (`fsGroup`)
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)
    return folder


def read_stream(stream: Readable, most: int) -> bytes:
    """Return what a stream holds. Raises OSError if that is more than `most` bytes; no more is read then."""
    held = bytearray()
    while chunk := stream.read(min(CHUNK, most + 1 - len(held))):
        held += chunk
        if len(held) > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return bytes(held)


def _expect_own(status: os.stat_result) -> None:
    _expect_plain(status.st_mode)
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")


def _expect_plain(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, next((text for check, text in KINDS if check(mode)), DEVICE))
