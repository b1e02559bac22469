"""A real PostgreSQL for one test run: a fresh cluster in a temporary folder, reachable by its Unix socket alone."""

from __future__ import annotations

import os
import pwd
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

DEBIAN = Path("/usr/lib/postgresql")
START_TIMEOUT = 30.0
# The data dies with the test; what is tested is what PostgreSQL says, not what a disk keeps.
OPTIONS = ("fsync=off", "listen_addresses=", "max_connections=50", "shared_buffers=16MB")


class NoPostgresError(Exception):
    """PostgreSQL did not start."""


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`: from PATH, else Debian's newest; None where there is none."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = [path for path in DEBIAN.glob("*/bin") if (path / "initdb").exists() and (path / "postgres").exists()]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


def unprivileged() -> dict[str, Any]:
    """How to start a process as somebody else, where we are root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def postgres(bin_folder: Path) -> Iterator[str]:
    """The connection string of a running server; NoPostgresError with the end of its log when it does not start."""
    # Not pytest's folder: that is root's alone, and too long a path for a socket.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, who = Path(name), unprivileged()
        if who:
            os.chown(folder, who["user"], who["group"])
        options: dict[str, Any] = {"cwd": folder, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}, **who}
        log = folder / "log"
        with log.open("wb") as output:
            options |= {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            initialise = ["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
            if subprocess.run([bin_folder / "initdb", *initialise], timeout=60, **options).returncode != 0:
                raise NoPostgresError(log.read_text()[-2000:])
            settings = [part for option in OPTIONS for part in ("-c", option)]
            server = subprocess.Popen([bin_folder / "postgres", "-D", "data", "-k", folder, *settings], **options)
        try:
            await_start(server, bin_folder, folder, log)
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            stop(server)


@contextmanager
def installed_postgres() -> Iterator[str]:
    """As `postgres`, with the programs of this machine; skips the test where there are none."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed (no initdb on PATH or in /usr/lib/postgresql): apt install postgresql")
    with postgres(folder) as running:
        yield running


def await_start(server: subprocess.Popen[bytes], bin_folder: Path, folder: Path, log: Path) -> None:
    """Return when the server takes connections."""
    ready = [str(bin_folder / "pg_isready"), "-q", "-h", str(folder)]
    end = time.monotonic() + START_TIMEOUT
    while subprocess.run(ready, timeout=10).returncode != 0:
        if server.poll() is not None or time.monotonic() > end:
            raise NoPostgresError(log.read_text()[-2000:])
        time.sleep(0.05)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End it and its children, whatever they do."""
    if server.poll() is None:
        server.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(60)
