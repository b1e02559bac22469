"""One node of the embedded cluster as a process, and the guard that ends nodes whose parent died.

Only processes started here are ever signalled. What the node is told is in `node_config.py`.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

from sidecar.dev.kafka.node_config import Plan
from sidecar.errors import SetupError
from sidecar.java.orphan_guard import STOP_SECONDS

TAIL_LINES = 30


class Node:
    """A broker that can be started, stopped, killed and paused; its port and data stay.

    `start`, `restart` and `resume` return when clients can work with it again.
    """

    def __init__(
        self, plan: Plan, command: list[str], changed: Callable[[], None], ready: Callable[[Node], None]
    ) -> None:
        self.plan = plan
        self._command, self._changed, self._ready = command, changed, ready
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def id(self) -> int:
        """The broker id, as metadata gives it for a leader."""
        return self.plan.id

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return self.plan.address

    @property
    def pid(self) -> int:
        """The process id of the JVM. Raises SetupError when the node is down."""
        if self._process is None:
            raise SetupError(f"node {self.id} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether the process is held by `pause`."""
        return self._paused and self.running

    def launch(self) -> None:
        """Start the process without waiting for it; SetupError when it runs already."""
        if self.running:
            raise SetupError(f"node {self.id} is running already")
        self._paused = False
        with self.plan.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.plan.folder,
                process_group=0,  # as the guard: Ctrl-C is ours to handle
            )
        self._changed()

    def start(self) -> None:
        """Start the node and wait until it answers. Raises SetupError with the end of its log."""
        self.launch()
        self._ready(self)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or handed over."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, a clean stop: leaderships move, logs are closed; killed when that takes too long."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop the node if it runs, start it on the same port and data, and wait until it answers."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as in a long stop of the garbage collector."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def wake(self) -> None:
        """SIGCONT, without waiting."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def resume(self) -> None:
        """SIGCONT, and wait until the node answers."""
        self.wake()
        self._ready(self)

    def ask_to_stop(self) -> None:
        """SIGTERM without waiting, so that several nodes can stop together; `stop` or `kill` must follow."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of the broker's log."""
        lines = self.plan.log.read_text("utf-8", "replace").splitlines() if self.plan.log.exists() else []
        return "\n".join(lines[-TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:
            raise SetupError(f"node {self.id} is not running")
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process, self._paused = self._process, None, False
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused process takes SIGTERM only once it goes on
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._changed()
