"""Files that people and mounts give: bounded, and whatever is no plain file is refused at once."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reconsume.sidecar.files import open_plain, read_given, read_plain, read_stream
from tests.support.deadline import until

MOST = 1_000


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def folder(folder: Path) -> Path:
    return folder


def a_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    return folder / "socket"


def link_to_a_pipe(folder: Path) -> Path:
    (folder / "link").symlink_to(pipe(folder))
    return folder / "link"


def a_device(_: Path) -> Path:
    return Path("/dev/zero")


@pytest.fixture
def within_seconds() -> Callable[[Callable[[], object]], object]:
    """Calls on a thread of its own, so that a read that waits for ever fails the test and does not stop it."""

    def call(what: Callable[[], object]) -> object:
        found: list[object] = []

        def run() -> None:
            try:
                found.append(what())
            except Exception as error:  # noqa: BLE001 - it is what the test asks for
                found.append(error)

        threading.Thread(target=run, daemon=True).start()
        until(lambda: found, 5, "the call has returned")
        return found[0]

    return call


@pytest.mark.parametrize("read", [read_plain, read_given], ids=["mounted", "of a command line"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (pipe, "it is a pipe, and no plain file"),
        (link_to_a_pipe, "it is a pipe, and no plain file"),
        (a_socket, "it is a socket, and no plain file"),
        (a_device, "it is a device, and no plain file"),
        (folder, "it is a folder"),
    ],
)
def test_what_is_no_plain_file_is_refused_and_never_waited_for(
    within_seconds: Callable[[Callable[[], object]], object],
    tmp_path: Path,
    read: Callable[[Path, int], bytes],
    make: Callable[[Path], Path],
    says: str,
) -> None:
    path = make(tmp_path)
    fault = within_seconds(lambda: read(path, MOST))
    assert isinstance(fault, OSError)
    assert fault.strerror == says


@pytest.mark.parametrize(("size", "fits"), [(0, True), (MOST, True), (MOST + 1, False), (9 * MOST, False)])
def test_a_file_is_read_whole_up_to_its_bound(tmp_path: Path, size: int, fits: bool) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    if fits:
        assert read_plain(file, MOST) == b"x" * size
    else:
        with pytest.raises(OSError, match=f"it has more than {MOST} bytes"):
            read_plain(file, MOST)


def test_of_what_is_too_long_no_more_is_read_than_shows_it() -> None:
    stream = io.BytesIO(b"x" * 100 * MOST)
    with pytest.raises(OSError, match="more than"):
        read_stream(stream, MOST)
    assert stream.tell() == MOST + 1


def test_a_pipe_of_the_shell_is_read_where_a_command_line_names_it() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as told:
        told.write(b"plan")
    try:
        assert read_given(Path(f"/dev/fd/{reader}"), MOST) == b"plan"
        with pytest.raises(OSError, match="it is a pipe"):
            read_plain(Path(f"/dev/fd/{reader}"), MOST)
    finally:
        os.close(reader)


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(OSError, match="folder"):
            open_plain(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
