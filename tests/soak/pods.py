"""The soak's pods: real sidecars in slots, each under a configuration, and a keeper that does what the kubelet does."""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from reconsume.sidecar.cli.terminal.exit_codes import TERMINATED
from tests.soak.journal import Journal
from tests.soak.pod import Pod, Stood
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import CHECKED, SidecarProcess

GRACE = 25.0
"""Seconds from SIGTERM to SIGKILL, as `terminationGracePeriodSeconds`."""
READY = 90.0
"""Seconds that a roll-out waits for a new pod; then it goes on, as one does whose progress deadline is over."""
LOOK = 1.0
LIVE_WITHIN = 5.0
"""Seconds, as `timeoutSeconds` of the liveness probe."""
UNWELL = 30
"""So many looks in a row at which /livez says 503, or nothing, and the keeper restarts the container."""


class Pods(threading.Thread):
    """The pods by slot. The thread is the keeper: a container that ended by itself is started anew, and noted.

    `slots`: how many there are beside one that joins for a while. `config`: what differs from a test's sidecar, by the
    variant that is rolled out. `name`: what the names of pods begin with.
    """

    def __init__(
        self,
        group: GroupTopics,
        url: str,
        folder: Path,
        journal: Journal,
        slots: int,
        config: Callable[[str], Config],
        name: str = "pod",
    ) -> None:
        super().__init__(name=f"keeper of {name}s", daemon=True)
        self.slots = slots
        self.stood: list[Stood] = []
        """Every pause that is over."""
        self.findings: list[str] = []
        """What no pod should do."""
        self.crashes: list[str] = []
        """What a pod did by itself that no fault explains: it ended, or was stuck until it was restarted."""
        self._group, self._url, self._folder, self._journal = group, url, folder, journal
        self._config, self._name = config, name
        self._slots: dict[int, Pod] = {}
        self._every: list[Pod] = []
        self._lock = threading.RLock()
        self._ended = threading.Event()

    # --- what is there -----------------------------------------------------------------------------------------------

    def pod(self, slot: int) -> Pod:
        """The pod in a slot."""
        with self._lock:
            return self._slots[slot]

    def all(self) -> tuple[Pod, ...]:
        """Every pod."""
        with self._lock:
            return tuple(self._slots.values())

    def statuses(self) -> Iterator[tuple[Pod, str]]:
        """The metrics of those that answer at once."""
        for pod in self.all():
            with suppress(OSError, http.client.HTTPException):
                if pod.wanted and pod.process.running:
                    yield pod, pod.process.request("GET", "/metrics", 1.0).body.decode()

    # --- what is done ------------------------------------------------------------------------------------------------

    def launch(self, slot: int, variant: str = "base") -> Pod:
        """Put a new pod, of a new name, into a slot, which its predecessor has left."""
        with self._lock:
            before = self._slots.get(slot)
            generation = 0 if before is None else before.generation + 1
            name = f"{self._name}-{slot}-{generation}"
            process = SidecarProcess(
                self._group,
                f"{self._url}/{name}",
                self._folder,
                pod=name,
                overrides=self._config(variant),
                fresh=True,
                environ=CHECKED,
            )
            pod = Pod(slot, generation, variant, process)
            self._slots[slot] = pod
            self._every.append(pod)
            self.start_again(pod)
        return pod

    def end_former(self) -> None:
        """End every pod whose slot has another one: a roll-out that broke has left it there."""
        for pod in self._every:
            if pod.process.running and self.pod(pod.slot) is not pod:
                self.terminate(pod)

    def start_again(self, pod: Pod) -> None:
        """Start the container of a pod that is down: the same name, the same configuration."""
        with self._lock:
            pod.wanted, pod.unwell = True, 0
            pod.start()

    def kill(self, pod: Pod) -> str:
        """SIGKILL; what the system says of it."""
        with self._lock:
            pod.wanted = False
        pod.process.kill()
        assert not pod.process.running
        return f"{pod.name} ended with {pod.process.process.returncode}"

    def terminate(self, pod: Pod) -> str:
        """SIGTERM, and SIGKILL when the grace period is over."""
        with self._lock:
            pod.wanted = False
        if not pod.process.running:
            return f"{pod.name} was not running"
        pod.process.cont()
        begin = time.monotonic()
        try:
            code = pod.process.stop(GRACE).code
        except AssertionError:
            self._find(f"{pod.name} did not end within {GRACE:g} s of SIGTERM")
            return f"{pod.name} was killed after its grace period"
        # Before `run` waits for signals, the command ends by them as every other does.
        if code != 0 and (pod.begun or code not in (-signal.SIGTERM, TERMINATED)):
            self._find(f"{pod.name} ended with {code} after SIGTERM")
        return f"{pod.name} ended with {code} after {time.monotonic() - begin:.1f} s"

    @contextmanager
    def paused(self, pod: Pod) -> Iterator[str]:
        """SIGSTOP, and SIGCONT at the end; the keeper leaves it alone."""
        with self._lock:
            pod.wanted = False
        since = time.time_ns() // 1_000_000
        pod.process.pause()
        try:
            yield f"{pod.name} is {await_state(pod.process.pid, psutil.STATUS_STOPPED)}"
        finally:
            pod.process.cont()
            self.stood.append(Stood(pod.name, since, time.time_ns() // 1_000_000))
            with self._lock:
                pod.wanted = True

    def launch_all(self) -> None:
        """A pod for each slot, and the keeper; RuntimeError if one does not start."""
        for slot in range(self.slots):
            self.launch(slot)
        for slot in range(self.slots):
            if not self.await_ready(self.pod(slot)):
                raise RuntimeError(f"a sidecar does not start: {self.pod(slot).process.log()[-2_000:]}")
        self.start()

    def await_ready(self, pod: Pod, seconds: float = READY) -> bool:
        """Wait until a pod has started; False when it did not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.3)
            with suppress(OSError, http.client.HTTPException):
                if pod.process.request("GET", "/startupz", 2.0).status == 200:
                    return True
        return False

    # --- the keeper --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look at every pod once a second."""
        while not self._ended.wait(LOOK):
            for pod in self.all():
                pod.unwell = pod.unwell + 1 if self._unwell(pod) else 0
                with self._lock:
                    self._keep(pod)

    def _keep(self, pod: Pod) -> None:
        if not pod.wanted:
            return
        if not pod.process.running:
            self._crashed(f"{pod.name} ended by itself with {pod.process.process.returncode}")
            self.start_again(pod)
        elif pod.unwell >= UNWELL:
            self._crashed(f"{pod.name} was restarted: /livez said 503 or nothing for {UNWELL} looks")
            pod.process.abort()
            self.start_again(pod)

    def _unwell(self, pod: Pod) -> bool:
        """Whether /livez says so, or is not answered, as by a process of which no thread runs any more."""
        if not (pod.wanted and pod.process.running and pod.begun):
            return False
        try:
            return pod.process.request("GET", "/livez", LIVE_WITHIN).status == 503
        except (OSError, http.client.HTTPException):
            return True

    def _crashed(self, what: str) -> None:
        self.crashes.append(f"{self._journal.seconds:.1f} s: {what}")
        self._journal.tell("crashed", said=what)

    def _find(self, finding: str) -> None:
        self.findings.append(f"{self._journal.seconds:.1f} s: {finding}")
        self._journal.tell("finding", said=finding)

    def end(self) -> None:
        """End the keeper, and then whatever still runs, in order; what needs to be killed is noted."""
        self._ended.set()
        self.join()
        for pod in self.all():
            if pod.process.running:
                self.terminate(pod)

    def abandon(self) -> None:
        """Kill all that runs."""
        self._ended.set()
        for pod in self._every:
            pod.process.__exit__(None, None, None)


def await_state(pid: int, state: str) -> str:
    """Wait until the system says that a process is in a state."""
    return until(lambda: state if psutil.Process(pid).status() == state else "", 2.0, f"process {pid} is {state}")
