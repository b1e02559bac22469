"""The clock: the only module that reads the time for the core."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from reconsume.sidecar.core.record import Now

_MS = 1_000_000
_BEHIND = 1_000
"""Nanoseconds by which our wall time runs behind the true one on purpose. It is more than the error of the measurement,
so what is due by our time is also due by the true time."""
_SET = 10_000
"""Nanoseconds. From this difference on, the wall clock was set since the last check; a smaller difference is an error
of the measurement."""
_LOOK = 1_000_000_000
"""Nanoseconds between two checks whether the wall clock was set."""


class Clock:
    """Wall time (for what is written) and steady time (for how long to wait), in milliseconds, from one reading.

    Both change at the same moment. If each were read and truncated by itself, a wait from one to the other could end 1
    ms early.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._ahead, self._rest = divmod(self._difference(), _MS)
        self._look_at = 0

    def now(self) -> Now:
        """Return the present moment.

        A change of the wall clock shows within a second. The steady time goes on evenly.
        """
        steady = self._steady_ns()
        if steady >= self._look_at:
            self._look_at = steady + _LOOK
            self._follow()
        count = (steady + self._rest) // _MS
        return Now(count + self._ahead, count)

    def _follow(self) -> None:
        """Adopt the new wall time if the wall clock was set since the last check."""
        was_set = self._difference() - self._ahead * _MS - self._rest
        if abs(was_set) >= _SET:
            # Rounded to the nearest millisecond; the rest may be negative.
            whole = (was_set + _MS // 2) // _MS
            self._ahead += whole
            self._rest += was_set - whole * _MS

    def _difference(self) -> int:
        """Return wall minus steady time in nanoseconds, from the quickest of three readings."""
        readings = []
        for _ in range(3):
            before = self._steady_ns()
            wall = self._wall_ns()
            after = self._steady_ns()
            readings.append((after - before, wall - after))
        # In the slower readings this thread lost the CPU.
        return min(readings)[1] - _BEHIND


now = Clock().now
"""The present moment of this process."""


def wall() -> int:
    """Return the wall clock, in epoch ms."""
    return time.time_ns() // _MS


def utc(at: int, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    """Return epoch ms as text in UTC, by a form of `strftime`; the number if it is no time that can be shown."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):  # a record may hold any number
        return str(at)


def utc_ms(at: int) -> str:
    """Return epoch ms as text in UTC with its milliseconds (RFC 3339)."""
    return utc(at, f"%Y-%m-%dT%H:%M:%S.{at % 1000:03d}Z")
