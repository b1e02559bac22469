"""Count consecutive failures, to distinguish a failing service from one bad record."""

from __future__ import annotations

from sidecar.core.record import Now, Record

FAILING_RECORDS = 3
"""Different records that must fail in a row before it is an outage: one poison record is none."""


class FailureStreak:
    """Failures in a row, without one success; `limit` of them are an outage (None: never)."""

    def __init__(self, limit: int | None) -> None:
        self.length = 0
        self._limit = limit
        self._records: set[str] = set()
        self._last: Now | None = None

    def add(self, record: Record, now: Now) -> bool:
        """Add a failure; return whether it is one too many. A batch fails once: its records share one `Now`."""
        if self._limit is None or now is self._last:
            return False
        self._last = now
        self.length += 1
        if len(self._records) < FAILING_RECORDS:
            self._records.add(record.id)
        return self.length >= self._limit and len(self._records) >= FAILING_RECORDS

    def clear(self) -> None:
        """Begin anew, usually after a success."""
        self.length = 0
        self._records.clear()
