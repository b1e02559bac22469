"""A pod with a native sidecar, and its deletion as the kubelet does it, with real processes.

Each container goes its own way side by side (kubelet `killContainer`, KEP-753): its preStop hook, within the grace
period; then the sidecar waits for its turn, which comes when the service has ended or the grace period is over; then
SIGTERM; then SIGKILL when the grace period is over, but not sooner than two seconds after SIGTERM.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.support.service.pod_service import REPOSITORY, ServiceProcess
from tests.support.sidecar.forked import Forked
from tests.support.sidecar.process import Exit, SidecarProcess

LEAST_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL at least, however little of the grace period is left."""
KILLED = -signal.SIGKILL

Hook = Callable[[float], Any]
"""A preStop hook: gets the seconds that it may take."""


class Deletion(NamedTuple):
    """How a pod went. `drained`: what the sidecar's hook brought, None when it was cut off.

    `acknowledged`: when that was, epoch ms. The seconds of `sidecar` and `service` are from the deletion on.
    """

    drained: Any
    acknowledged: int | None
    sidecar: Exit
    service: Exit


def no_hook(_seconds: float) -> None:
    """No preStop hook."""


class Pod:
    """A service and its sidecar, both running. `pre_stop` is the service's hook; the sidecar's is `drain`."""

    def __init__(
        self, service: ServiceProcess, sidecar: SidecarProcess, grace: float, pre_stop: Hook = no_hook
    ) -> None:
        self.service = service
        self.sidecar = sidecar
        self.drain: Hook = self.post_drain
        self._grace = grace
        self.pre_stop = pre_stop
        self._service_gone = threading.Event()
        self._began = 0.0

    def delete(self) -> Deletion:
        """Delete the pod; returns when both processes have ended. A second call would find nobody."""
        self._began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            service = pool.submit(self._end_service)
            sidecar = pool.submit(self._end_sidecar)
            (drained, acknowledged), ended = sidecar.result()
            return Deletion(drained, acknowledged, ended, service.result())

    def post_drain(self, seconds: float) -> Any:
        """The hook `POST /drain`: what it answers; None when it does not within `seconds`."""
        try:
            return self.sidecar.request("POST", "/drain", seconds).json
        except OSError:
            return None

    def run_drain(self, seconds: float) -> Any:
        """The hook `reconsume drain`: its exit code; None when it takes more than `seconds`."""
        words = [sys.executable, "-m", "reconsume.sidecar", "drain", "-c", str(self.sidecar.files[0])]
        try:
            return subprocess.run(words, cwd=REPOSITORY, timeout=seconds, check=False, capture_output=True).returncode
        except subprocess.TimeoutExpired:
            return None

    # --- the kubelet -------------------------------------------------------------------------------------------------

    @property
    def _left(self) -> float:
        return max(0.0, self._began + self._grace - time.monotonic())

    def _end_service(self) -> Exit:
        self.pre_stop(self._left)
        process = self.service.process
        try:
            return self._terminate(process)
        finally:
            self._service_gone.set()

    def _end_sidecar(self) -> tuple[tuple[Any, int | None], Exit]:
        drained = self.drain(self._left)
        acknowledged = None if drained is None else time.time_ns() // 1_000_000
        self._service_gone.wait(self._left)
        return (drained, acknowledged), self._terminate(self.sidecar.process)

    def _terminate(self, process: subprocess.Popen[bytes] | Forked) -> Exit:
        process.send_signal(signal.SIGTERM)  # does nothing to one that has ended
        try:
            process.wait(max(LEAST_GRACE, self._left))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        return Exit(process.wait(60), time.monotonic() - self._began)
