"""Records that wait in memory until they may be delivered."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from itertools import count

from sidecar.core.record import Partition, Record

NEAR = 3_000
"""Up to so many ms ahead a record waits in memory; further off its partition is parked (ARCHITECTURE §5)."""

EARLY = 1_150
"""A parked partition is resumed so many ms early: an idle broker thread takes up to 1.00 s to fetch again (measured).

Resumed at the due time itself, a record would be 650 ms late in the median.
"""

NEVER = 1 << 62


class Hold:
    """A heap of records by the steady time (ms) at which they are released."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Record]] = []
        self._arrival = count()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, record: Record, until: int) -> None:
        """Keep a record until the steady time `until`."""
        heapq.heappush(self._heap, (until, next(self._arrival), record))

    def due(self, steady: int) -> list[Record]:
        """Take every record whose time has come, earliest first."""
        taken = []
        while self._heap and self._heap[0][0] <= steady:
            taken.append(heapq.heappop(self._heap)[2])
        return taken

    def next_at(self) -> int:
        """The steady time of the next release; `NEVER` when nothing waits."""
        return self._heap[0][0] if self._heap else NEVER

    def drop(self, partitions: Collection[Partition]) -> None:
        """Forget the records of partitions that are given up."""
        self._heap = [item for item in self._heap if item[2].source not in partitions]
        heapq.heapify(self._heap)

    def count_by_topic(self) -> dict[str, int]:
        """How many records wait, by the topic that they were read from."""
        counts: dict[str, int] = {}
        for _, _, record in self._heap:
            counts[record.source.topic] = counts.get(record.source.topic, 0) + 1
        return counts
