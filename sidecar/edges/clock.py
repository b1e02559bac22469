"""The clock: the only place that reads the time for the core."""

from __future__ import annotations

import time

from sidecar.core.record import Now

_MS = 1_000_000


def now() -> Now:
    """The present moment: wall time for what is written, steady time for how long to wait.

    The steady time is that of the moment at which the present wall millisecond began. Cut to milliseconds each for
    itself, the clocks would change at different moments, and a wait from one to the other end up to 1 ms early.
    """
    wall, rest = divmod(time.time_ns(), _MS)
    return Now(wall, (time.monotonic_ns() - rest) // _MS)
