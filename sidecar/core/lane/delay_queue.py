"""Records that wait in memory until they may be delivered."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import count

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER, Partition, Record

HOLD_WITHIN_MS = 3_000
"""ms. A record that is due within this time waits in memory. For a later one its partition is paused
instead, which costs no memory."""

RESUME_EARLY_MS = 1_150
"""ms by which a paused partition is resumed early: an idle broker thread takes up to 1.00 s to fetch again (measured).

If it were resumed at the due time itself, a record would be 650 ms late in the median.
"""

SHARE = 4
"""One part in this many of a lane's room. While the waiting records take more than that, no record joins them that
would wait longer than `HOLD_WITHIN_MS`: it would keep the lane from everything else."""


class DelayQueue:
    """A heap of records by the steady time (ms) at which they are released. `room_bytes`: what the lane may hold.

    Invariants: `_load_bytes` is the weight of all records here; no record is released before an earlier one.
    """

    def __init__(self, room_bytes: int = NEVER) -> None:
        self._heap: list[tuple[int, int, Record]] = []
        self._arrival = count()
        self._most_bytes = room_bytes // SHARE
        self._load_bytes = 0

    @property
    def patience_ms(self) -> int:
        """The ms that one more record may wait here."""
        return NEVER if self._load_bytes < self._most_bytes else HOLD_WITHIN_MS

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, record: Record, until_ms: int) -> None:
        """Keep a record until the steady time `until_ms`."""
        self._load_bytes += record.weight
        heapq.heappush(self._heap, (until_ms, next(self._arrival), record))

    def due(self, steady_ms: int) -> list[Record]:
        """Remove and return every record whose time has come, earliest first."""
        taken = []
        while self._heap and self._heap[0][0] <= steady_ms:
            taken.append(heapq.heappop(self._heap)[2])
        self._load_bytes -= sum(record.weight for record in taken)
        return taken

    def next_at(self) -> int:
        """Return the steady time of the next release; `NEVER` if nothing waits."""
        return self._heap[0][0] if self._heap else NEVER

    def all(self) -> Iterator[Record]:
        """Return every record, in no order."""
        return (record for _, _, record in self._heap)

    def over(self, steady_ms: int) -> list[Record]:
        """Return the records whose time has come and that are still here."""
        return [record for until_ms, _, record in self._heap if until_ms <= steady_ms]

    def later(self, steady_ms: int) -> list[Record]:
        """Return the records whose time has not come yet."""
        return [record for until_ms, _, record in self._heap if until_ms > steady_ms]

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are given up."""
        self._keep([item for item in self._heap if item[2].source not in partitions])

    def take(self, partition: Partition) -> list[Record]:
        """Remove and return the records of a partition, whenever they are due.

        Those that are retried in place stay, because their count is kept nowhere else.
        """
        taken = [item[2] for item in self._heap if item[2].source == partition and not item[2].again]
        if taken:
            self._keep([item for item in self._heap if item[2].source != partition or item[2].again])
        return taken

    def pick(self, record: Record) -> int:
        """Remove one record, if it waits here; return the steady time (ms) of its release, 0 if it does not."""
        until_ms = next((item[0] for item in self._heap if item[2] is record), 0)
        if until_ms:
            self._keep([item for item in self._heap if item[2] is not record])
        return until_ms

    def _keep(self, items: list[tuple[int, int, Record]]) -> None:
        self._heap = items
        heapq.heapify(self._heap)
        self._load_bytes = sum(item[2].weight for item in items)

    def count_by_topic(self) -> dict[str, int]:
        """Return how many records wait, by the topic that they were read from."""
        counts: dict[str, int] = {}
        for _, _, record in self._heap:
            counts[record.source.topic] = counts.get(record.source.topic, 0) + 1
        return counts

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(
            self._load_bytes == sum(item[2].weight for item in self._heap),
            "the delay queue has the bytes of its records",
        )
        for at, item in enumerate(self._heap[1:], 1):
            ensure(self._heap[(at - 1) // 2][0] <= item[0], "the delay queue releases the earliest record first")
