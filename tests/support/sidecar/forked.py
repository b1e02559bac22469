"""Sidecars and commands that are forked from a process which has imported the product: a start costs a second of CPU
less.

All else is that of a program which was started: pid, environment, folder, signals, and the exit.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.deadline import STEP

MODULE, MAIN = "tests.support.sidecar.forked", "reconsume.sidecar"
NOTHING = Path(os.devnull)


class Forked:
    """A forked sidecar, with those parts of `subprocess.Popen` that the tests use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Until this is asked its pid is no other's."""
        if self.returncode is None:
            self.returncode = self._nursery.ask(pid=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait until it has ended; subprocess.TimeoutExpired if it does not."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(MAIN, timeout)
            time.sleep(STEP)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Ended(NamedTuple):
    """What became of a command: its exit code, and what it printed on stdout and stderr."""

    code: int
    out: str
    told: str


class Command:
    """`reconsume` with some words, which runs in a folder."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._out, self._told = (folder / f"{uuid.uuid4().hex[:8]}.{name}" for name in ("out", "told"))
        self.process = nursery().fork(words, folder, os.environ, self._told, self._out)

    def end(self, seconds: float) -> Ended:
        """Wait for its end; subprocess.TimeoutExpired if it does not."""
        code = self.process.wait(seconds)
        return Ended(code, self._out.read_text("utf-8"), self._told.read_text("utf-8"))


@cache
def nursery() -> Nursery:
    """The one of this run, or of this worker of it."""
    return Nursery()


class Nursery:
    """The process that sidecars are forked from; it ends when its standard input does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        atexit.register(self.end)

    def fork(
        self, words: Sequence[str], folder: Path, environ: Mapping[str, str], stderr: Path, stdout: Path = NOTHING
    ) -> Forked:
        """`python -m reconsume.sidecar` with these words, in this folder and environment; its output goes to files."""
        files = {"stdout": str(stdout), "stderr": str(stderr)}
        return Forked(self, self.ask(words=list(words), folder=str(folder), environ=dict(environ), **files))

    def ask(self, **order: Any) -> Any:
        """The answer to an order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """End it; what was forked goes on."""
        self._process.communicate()


def serve() -> list[str]:
    """Carry out orders until there are no more; in a fork return the words of its command line."""
    import reconsume.sidecar.dlq.redriver
    import reconsume.sidecar.runtime.run  # noqa: F401 - the forks have them
    from tests.support.sidecar.command_lines import parsed

    parsed(["run", "--utc"])  # the forks have the commands too, and what typer imports for the first option
    assert threading.active_count() == 1, "threads do not survive a fork"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test run's
    codes: dict[int, int | None] = {}
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        if "pid" in order:
            answer = codes[order["pid"]] = _code(order["pid"], codes)
        elif answer := os.fork():
            codes[answer] = None
        else:
            return _become(**order)
        os.write(1, json.dumps(answer).encode() + b"\n")
    sys.exit()


def _code(pid: int, codes: Mapping[int, int | None]) -> int | None:
    if codes[pid] is not None:  # another thread has asked before
        return codes[pid]
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(words: list[str], folder: str, environ: dict[str, str], stdout: str, stderr: str) -> list[str]:
    """Take over what a program of its own would have been given."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate((os.devnull, stdout, stderr)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, target)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.orig_argv = [sys.executable, "-m", MAIN, *words]
    return words


if __name__ == "__main__":
    sys.argv[1:] = serve()
    runpy.run_module(MAIN, run_name="__main__", alter_sys=True)
