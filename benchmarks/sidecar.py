"""A sidecar process under measurement: its rate, its CPU, its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

CODE = """
import ctypes, sys, threading
from reconsume.sidecar.settings.load import load
from reconsume.sidecar.runtime.run import run
def named(*_):
    sys.setprofile(None)
    ctypes.CDLL(None).prctl(15, threading.current_thread().name.encode()[:15], 0, 0, 0)
threading.setprofile(named)
threading.current_thread().name = "loop"
named()
run([load(None, sys.argv[1:], {})])
"""
"""Python tells the kernel the names of its threads only from 3.14 on; `threads_of` finds them there. 15 is PR_SET_NAME.
"""


class Usage(NamedTuple):
    """What a process has used at one moment."""

    at: float
    cpu: float
    rss: int


class Sidecar:
    """A running sidecar. Its log goes to a file, which is shown when it ends too early."""

    def __init__(self, sets: list[str]) -> None:
        self._log = Path(tempfile.mkstemp(prefix="reconsume-bench-", suffix=".log")[1])
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CODE, *sets], stderr=log, env=os.environ | {"POD_NAME": f"bench-{os.getpid()}"}
            )
        self.started_at = time.perf_counter()
        self._ps = psutil.Process(self._process.pid)
        self.peak = 0

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def usage(self) -> Usage:
        """What it has used so far; remembers the greatest memory seen."""
        if self._process.poll() is not None:
            raise SystemExit(f"the sidecar ended with {self._process.returncode}:\n{self._log.read_text()[-4000:]}")
        times = self._ps.cpu_times()
        rss = self._ps.memory_info().rss
        self.peak = max(self.peak, rss)
        return Usage(time.perf_counter(), times.user + times.system, rss)

    def close(self) -> None:
        """Stop it in order."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.unlink()
