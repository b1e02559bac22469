"""One node of the embedded cluster, as a process.

Only processes started here get signals. The configuration of the node is in `node_config.py`.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

from reconsume.sidecar.dev.kafka.node_config import Plan
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import open_private
from reconsume.sidecar.java.orphan_guard import STOP_SECONDS

TAIL_LINES = 30


class Node:
    """A broker that can be started, stopped, killed and paused; it keeps its port and data.

    `start`, `restart` and `resume` return when clients can use it again.
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
        """The process id of the JVM. Raises SetupError if the node is down."""
        if self._process is None:
            raise SetupError(f"node {self.id} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether the process is stopped by `pause`."""
        return self._paused and self.running

    def launch(self) -> None:
        """Start the process without waiting for it. Raises SetupError if it runs already."""
        if self.running:
            raise SetupError(f"node {self.id} is running already")
        self._paused = False
        with open_private(self.plan.log) as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.plan.folder,
                process_group=0,  # like the guard: only the parent process handles Ctrl-C
            )
        self._changed()

    def start(self) -> None:
        """Start the node and wait until it answers. Raises SetupError with the end of its log."""
        self.launch()
        self._ready(self)

    def kill(self) -> None:
        """Send SIGKILL: nothing is flushed, closed or handed over."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM for a clean stop: leaders move, logs are closed. The node is killed if that takes too long."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop the node if it runs, start it on the same port and data, and wait until it answers."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open and nothing answers, as in a long pause of the garbage collector."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def wake(self) -> None:
        """Send SIGCONT, without waiting."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def resume(self) -> None:
        """Send SIGCONT, and wait until the node answers."""
        self.wake()
        self._ready(self)

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting, so that several nodes can stop together. `stop` or `kill` must follow."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""
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
        process.send_signal(signal.SIGCONT)  # a paused process handles SIGTERM only after SIGCONT
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._changed()
