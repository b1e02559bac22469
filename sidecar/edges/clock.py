"""The clock: the only place that reads the time for the core."""

from __future__ import annotations

import time

from sidecar.core.record import Now

_MS = 1_000_000


def now() -> Now:
    """The present moment: wall time for what is written, steady time for how long to wait."""
    return Now(time.time_ns() // _MS, time.monotonic_ns() // _MS)
