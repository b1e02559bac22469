"""What the simulator asks of a lane and the product does not: few questions. Nothing else of a world looks into it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.partition import AWAY, READY
from reconsume.sidecar.core.record import Partition

MakeLane: TypeAlias = Callable[..., Lane]
"""The class of a lane, or what makes one."""
CHOSEN: MakeLane = Lane
"""What makes the lanes of a world unless it is given something else."""


class LaneView:
    """The questions."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._partitions = lane, lane.partitions

    def main_partition(self, source: Partition) -> Partition:
        """Return the partition with which `source` is owned: of a queue partition its main partition, else itself."""
        return self._partitions[source].kind.under or source

    def away(self, source: Partition) -> Collection[int]:
        """Return the offsets of a partition that have begun, and whose records are in Kafka alone; none if the
        partition is not owned."""
        partition = self._partitions.get(source)
        entries = () if partition is None else partition.offsets.entries.values()
        return {entry.offset for entry in entries if entry.where is AWAY}

    def in_hand(self, source: Partition) -> Collection[int]:
        """Return all other offsets of a partition below the one that begins next, done or not."""
        partition = self._partitions.get(source)
        return set() if partition is None else set(range(partition.offsets.next)) - set(self.away(source))

    @property
    def is_empty(self) -> bool:
        """Whether no record is in memory, ready, or refused by Kafka."""
        has_ready = any(partition.offsets.counts[READY] for partition in self._partitions.values())
        return self._lane.room.load == 0 and not has_ready and not self._lane.machines.outbox.refused

    @property
    def is_more_than_half_full(self) -> bool:
        """Whether more than half of the room is taken: then the lane looks at its partitions at each call."""
        return self._lane.room.more_than_half


def view(lane: Lane) -> LaneView:
    """Return the answers of a lane."""
    return LaneView(lane)
