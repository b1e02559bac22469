"""The processes that the demo starts: each has its own log, and each is ended again, even if the demo is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import open_private
from reconsume.sidecar.java.orphan_guard import OrphanGuard

STOP_SECONDS = 45.0
"""Seconds; more than the sidecar's own drain_timeout of 35 s, because it must end on its own."""
TAIL_LINES = 30


class Child:
    """A process of the demo; its output goes to the file `log`."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, log: Path | None = None) -> None:
        self.name = name
        self.log = log or folder / f"{name}.log"
        # Settings come only from the generated file, not from variables in the user's shell.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("RECONSUME_")}
        with open_private(self.log) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environ,
                process_group=0,  # only the demo itself handles Ctrl-C in the terminal
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise SetupError, with the end of its log, if it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise SetupError(f"the {self.name} ended by itself with code {code}:", self.log_tail())

    def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit code. A process that does not end is killed (negative code). May
        be called again."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def log_tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:])


class ProcessGroup:
    """Starts processes and ends them, the last one first. If this process is killed, the guard ends them."""

    def __init__(self, stack: ExitStack, home: Path, guard: OrphanGuard) -> None:
        self._stack, self._home, self._guard = stack, home, guard
        self._pids: list[int] = []

    def start(self, name: str, *command: str, log: Path | None = None) -> Child:
        """Start a module of the project with its options. `log`: the file for its output; None: one in the folder."""
        child = Child(name, command, self._home, log)
        self._stack.callback(child.stop)
        self._pids.append(child.pid)
        self._guard.watch(self._pids)
        return child
