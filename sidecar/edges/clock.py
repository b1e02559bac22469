"""The clock: the only place that reads the time for the core."""

from __future__ import annotations

import time

from sidecar.core.record import Now

_MS = 1_000_000
_PHASE = (time.monotonic_ns() - time.time_ns()) % _MS
"""Where in a steady millisecond a wall millisecond begins. Constant but for the slewing of the wall clock."""


def now() -> Now:
    """The present moment: wall time for what is written, steady time for how long to wait.

    The steady time counts the same milliseconds as the wall time. Cut to milliseconds each for itself, the clocks would
    change at different moments, and a wait from one to the other end up to 1 ms early. It is rounded, not cut: a thread
    may lose the processor between the two readings.
    """
    wall, rest = divmod(time.time_ns(), _MS)
    return Now(wall, (time.monotonic_ns() - rest - _PHASE + _MS // 2) // _MS)
