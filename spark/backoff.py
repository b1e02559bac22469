"""When a query that failed is started again, and when the job gives up: a pure count of failures in a row."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_WAIT = 1.0
"""Seconds before the first restart; doubled by each failure that follows."""
LONGEST_WAIT = 60.0
HEALTHY_AFTER = 300.0
"""Seconds of running after which earlier failures no longer count."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row."""

    failures: int = 0

    def failed(self, ran: float) -> Streak:
        """One failure more, after `ran` seconds; the first of a new streak when it had been healthy."""
        return Streak(1 if ran >= HEALTHY_AFTER else self.failures + 1)

    @property
    def wait(self) -> float:
        """Seconds until the next start."""
        # The exponent is bounded: 2.0 ** 1024 overflows.
        return min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 10), LONGEST_WAIT)
