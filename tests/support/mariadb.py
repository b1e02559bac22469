"""A real MariaDB for one test run: fresh data in a temporary folder, reachable by its Unix socket alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import unprivileged

START_TIMEOUT = 60.0
# The data dies with the test; what is tested is what the server says, not what a disk keeps.
OPTIONS = ("--skip-networking", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M")


class NoMariadbError(Exception):
    """MariaDB did not start."""


def program(name: str) -> str | None:
    """The path of a program of the server; None if it is not installed."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@contextmanager
def installed_mariadb() -> Iterator[Path]:
    """The socket of a running server, whose user `root` needs no password; skips the test if none is installed."""
    server, install = program("mariadbd"), program("mariadb-install-db")
    if server is None or install is None:
        pytest.skip("MariaDB is not installed (no mariadbd or mariadb-install-db): apt install mariadb-server")
    # Not pytest's folder: that is root's alone, and too long a path for a socket.
    with tempfile.TemporaryDirectory(prefix="my-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, who = Path(name), unprivileged()
        if who:
            os.chown(folder, who["user"], who["group"])
        options: dict[str, Any] = {"cwd": folder, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}, **who}
        data, log, socket = f"--datadir={folder / 'data'}", folder / "log", folder / "socket"
        with log.open("wb") as output:
            options |= {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            prepare = [install, "--no-defaults", data, "--skip-test-db", "--auth-root-authentication-method=normal"]
            if subprocess.run(prepare, timeout=120, **options).returncode != 0:
                raise NoMariadbError(log.read_text()[-2000:])
            running = subprocess.Popen([server, "--no-defaults", data, f"--socket={socket}", *OPTIONS], **options)
        try:
            await_socket(running, socket, log)
            yield socket
        finally:
            stop(running)


def await_socket(server: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    """Return when the server takes connections; its socket is there only then."""
    end = time.monotonic() + START_TIMEOUT
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > end:
            raise NoMariadbError(log.read_text()[-2000:])
        time.sleep(0.05)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End it at once: nothing is to be kept."""
    server.send_signal(signal.SIGKILL)
    server.wait(60)
