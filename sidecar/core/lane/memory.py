"""The memory of one lane: what its records take, and how much of it each partition may have.

No limit is stored: each is computed from the present state when it is needed, so none outlives the outage, the retries
or the refused copies that it comes from.

Refused copies stay in memory until Kafka accepts them. They have bytes of their own beside the room, so that they do
not keep the lane from the records of other partitions. What they take beyond these bytes counts in the room: at worst
the lane stands, but its memory is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.invariant import ensure
from sidecar.core.lane.partition import Because, LanePartition
from sidecar.core.pace.pace import Pace
from sidecar.core.record import NEVER, Partition

REFUSED_SHARE = 2
"""One part in this many of the room, as much again, is for refused copies. The memory limit of a pod has place for it
(`deploy/container.py`)."""


class AdmissionLimit(NamedTuple):
    """How much of a partition may be admitted.

    `roomy`: there is memory to hold records that are due soon. `most`: the bytes that the partition may have in memory,
    with its refused copies. `because`: why it may have no more.
    """

    roomy: bool
    most: int
    because: Because


class LaneMemory:
    """The bytes of one lane's records. `ordered`: a record that is retried in place keeps others back.

    Invariants: `load` is the sum of all partitions' loads, and `_refused_together` that of `refused_bytes`.
    """

    def __init__(self, room: int, partitions: Mapping[Partition, LanePartition], pace: Pace, *, ordered: bool) -> None:
        self.load = 0
        """Bytes of everything handed over and not done."""
        self.refused_bytes: Counter[Partition] = Counter()
        """Bytes of records whose copies or progress Kafka refuses, by their partition. They are part of `load`."""
        self._room, self._for_refused = room, room // REFUSED_SHARE
        self._refused_together = 0
        self._partitions, self._pace, self._ordered = partitions, pace, ordered

    def add(self, partition: LanePartition, weight: int) -> None:
        """Add the bytes of admitted records, or (negative) of records that are done."""
        partition.add_bytes(weight)
        self.load += weight

    def hold(self, refused: Counter[Partition]) -> None:
        """Take note of the bytes of all refused copies, by partition."""
        self.refused_bytes, self._refused_together = refused, refused.total()

    def forget(self, partition: LanePartition) -> None:
        """Forget the records of a partition that is gone."""
        self.load -= partition.load
        self._refused_together -= self.refused_bytes.pop(partition.source, 0)

    @property
    def taken(self) -> int:
        """Bytes of the room that are taken; the consumer's thread reads it."""
        return self.load - min(self._refused_together, self._for_refused)

    @property
    def full(self) -> bool:
        """Whether nothing more may be handed over."""
        return self.is_full_with(0)

    def is_full_with(self, under_way: int) -> bool:
        """Return whether nothing more may be handed over, beside so many bytes that are; for the consumer's thread."""
        return self.taken + under_way > self._room

    def limit_of(self, partition: LanePartition) -> AdmissionLimit:
        """Return how much of a partition may be admitted now: all, unless one of three things slows it down."""
        room = self._room - max(0, self._refused_together - self._for_refused)
        most, because = NEVER, Because.AT_BOUND
        # While answered failures slow the pace down, the poison records of one partition could fill the room of all. So
        # could the copies of one partition, if Kafka refuses more than have a place beside the room. Each partition may
        # therefore have half of its share.
        if self._pace.slowed or room < self._room:
            most = room // (2 * len(self._partitions))
            because = Because.SLOWED if self._pace.slowed else Because.CROWDED
        # Records behind one that is retried in place may wait for ever, and would fill the room of the whole lane.
        # So these partitions share a quarter of the room, and the others continue.
        if self._ordered and partition.retrying:
            share = room // (4 * sum(other.retrying > 0 for other in self._partitions.values()))
            if share < most:
                most, because = share, Because.BEHIND_RETRY
        return AdmissionLimit(self.taken < self._room // 2, most + self.refused_bytes[partition.source], because)

    def lets_go_on(self, partition: LanePartition) -> bool:
        """Return whether a paused partition may continue: a quarter of what it may have is free now.

        With less, a partition at its limit would be paused and sought for every record.
        """
        refused = self.refused_bytes[partition.source]
        return partition.load - refused <= (self.limit_of(partition).most - refused) * 3 // 4

    def crowds(self, partition: LanePartition) -> bool:
        """Return whether the refused copies of a partition take so much that none of its records is delivered.

        All partitions with such copies share half of the bytes for them. A partition that is stopped already needs a
        quarter of its share free.
        """
        share = self._for_refused // (2 * max(1, len(self.refused_bytes)))
        if partition.blocked:
            share = share * 3 // 4
        return self._refused_together > self._for_refused // 2 and self.refused_bytes[partition.source] > share

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        loads = sum(partition.load for partition in self._partitions.values())
        ensure(self.load == loads, f"the lane has the bytes of its partitions, {self.load} and {loads}")
        ensure(
            self._refused_together == self.refused_bytes.total(),
            "the bytes of refused copies are those of each partition",
        )
