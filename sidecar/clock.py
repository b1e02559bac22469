"""The clock: the only place that reads the time for the core."""

from __future__ import annotations

import time
from collections.abc import Callable

from sidecar.core.record import Now

_MS = 1_000_000
_BEHIND = 1_000
"""Nanoseconds by which our wall time is behind, more than it is known by: what is due by it is due by the true one."""
_SET = 10_000
"""Nanoseconds of difference from which on the wall clock was set since; below, the measurement was not exact."""
_LOOK = 1_000_000_000


class Clock:
    """Wall time for what is written, steady time for how long to wait, both in milliseconds, from one reading.

    They change at the same moment. Read and cut each for itself, a wait from one to the other could end 1 ms early.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._ahead, self._rest = divmod(self._difference(), _MS)
        self._look_at = 0

    def now(self) -> Now:
        """The present moment; the wall clock's being set shows within a second, and the steady time goes on evenly."""
        steady = self._steady_ns()
        if steady >= self._look_at:
            self._look_at = steady + _LOOK
            self._follow()
        count = (steady + self._rest) // _MS
        return Now(count + self._ahead, count)

    def _follow(self) -> None:
        """Take over how far the wall clock was set, by the shorter way for the rest."""
        was_set = self._difference() - self._ahead * _MS - self._rest
        if abs(was_set) >= _SET:
            whole = (was_set + _MS // 2) // _MS
            self._ahead += whole
            self._rest += was_set - whole * _MS

    def _difference(self) -> int:
        """Wall minus steady time in nanoseconds, by the quickest of three readings: in the others we lost the CPU."""
        readings = []
        for _ in range(3):
            before = self._steady_ns()
            wall = self._wall_ns()
            after = self._steady_ns()
            readings.append((after - before, wall - after))
        return min(readings)[1] - _BEHIND


now = Clock().now
"""The present moment of this process."""
