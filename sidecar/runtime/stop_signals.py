"""SIGTERM and SIGINT of a running sidecar: one thread waits for them, and every thread blocks them.

A blocked signal stays with the process, also while it restarts in place: `os.execv` keeps it for the new program. A
handler would not do: it may run on any thread that does not block the signal, up to the moment at which that thread
is ended by the restart, and the signal would be gone. Threads inherit what is blocked, so `block_stops` comes before
all of them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection

STOPS = frozenset({signal.SIGTERM, signal.SIGINT})
_END = signal.SIGUSR2
"""Ends the waiting thread; it is sent to that thread alone."""


def block_stops() -> Collection[int]:
    """Block the signals on this thread, and on each that it starts from now on; return what was blocked before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, STOPS | {_END})


def restore_blocked(before: Collection[int]) -> None:
    """Block what was blocked before, and nothing else: a start has failed, and its caller goes on."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignals(threading.Thread):
    """Waits for the signals. `stop`: called on this thread at the first; the second ends the process with 1."""

    def __init__(self, stop: Callable[[], object]) -> None:
        super().__init__(name="stop-signals", daemon=True)
        self._stop_process = stop
        self._has_come = False

    def run(self) -> None:
        """Wait until `leave_signals` is called."""
        while signal.sigwait(STOPS | {_END}) != _END:
            if self._has_come:
                os._exit(1)
            self._has_come = True
            self._stop_process()

    def leave_signals(self) -> bool:
        """Leave signals from now on to the next process; return whether one has come before."""
        assert self.ident is not None, "it was started"
        signal.pthread_kill(self.ident, _END)
        self.join()
        return self._has_come
