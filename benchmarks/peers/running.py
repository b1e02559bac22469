"""A peer under measurement: its process with all children, their CPU and memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil


class PeerError(Exception):
    """A peer ended, or did not do in time what it must; with the end of its log."""


class Used(NamedTuple):
    """The moment, and the CPU seconds until then."""

    at: float
    cpu: float


class Running:
    """A started peer. Its log goes to a file, whose end is shown when it ends too early."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="reconsume-peer-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name, "log")
        environ = os.environ | {"POD_NAME": f"bench-{os.getpid()}"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder.name, env=environ, stdout=log, stderr=log, process_group=0
            )
        self.started_at = time.perf_counter()

    def used(self) -> Used:
        """What all its processes have used so far."""
        if self._process.poll() is not None:
            raise PeerError(f"it ended with {self._process.returncode}:\n{self._log.read_text()[-2000:]}")
        times = [process.cpu_times() for process in self._tree()]
        return Used(time.perf_counter(), sum(one.user + one.system for one in times))

    def peak(self) -> int:
        """The greatest memory of each of its processes so far, added up, in bytes."""
        return sum(peak_of(process.pid) for process in self._tree())

    def kill(self) -> None:
        """Kill all its processes at once, as the kernel does to a container without memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        self._folder.cleanup()

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]


def peak_of(pid: int) -> int:
    """The greatest resident memory that the kernel has seen of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
