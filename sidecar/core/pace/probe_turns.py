"""Partitions in turn: while the service fails, each has its probe, so that the poison of one delays no other."""

from __future__ import annotations

from collections import deque
from itertools import count

from sidecar.core.record import Partition, Record


class ProbeTurns:
    """Track which partitions were probed least recently."""

    def __init__(self) -> None:
        self._last: dict[Partition, int] = {}
        self._numbers = count(1)

    def took(self, source: Partition) -> None:
        """Note that a probe of this partition has gone."""
        self._last[source] = next(self._numbers)

    def deal(self, ready: deque[Record]) -> None:
        """Order the records in place: one of each partition in turn, least recently probed first.

        The offsets of a partition keep their order. It reads every record, so it is for probes alone, of which there
        are a few in a second.
        """
        lines: dict[Partition, deque[Record]] = {}
        for record in ready:
            lines.setdefault(record.source, deque()).append(record)
        if len(lines) < 2:
            return
        ready.clear()
        turns = deque(sorted(lines.values(), key=lambda line: self._last.get(line[0].source, 0)))
        while turns:
            line = turns.popleft()
            ready.append(line.popleft())
            if line:
                turns.append(line)
