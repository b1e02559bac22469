"""What the simulator asks of a lane and the product does not: few questions, answered for each kind of lane.

Nothing else of a world, its models and its checkers looks into a lane, so each story runs on either kind. Rigs ask some
more, for the tests of one lane that use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from reconsume.sidecar.core.lane.lane import Lane
from reconsume.sidecar.core.lane.partition import AssignedPartition
from reconsume.sidecar.core.record import Now, Partition

MakeLane: TypeAlias = Callable[..., Lane]
"""The class of a lane. The new one has the same constructor and the same public methods."""


def lane_of(name: str) -> MakeLane:
    """Return the class of lane with this name: `old`, or `next`."""
    if name == "old":
        return Lane
    found: MakeLane = import_module(f"reconsume.sidecar.core.{name}.lane").Lane
    return found


CHOSEN = lane_of(os.environ.get("RECONSUME_SIM_LANE", "old"))
"""The class of lane that a world has unless it is given another one."""


class LaneView(Protocol):
    """The questions."""

    def main_partition(self, source: Partition) -> Partition:
        """Return the partition with which `source` is owned: of a queue partition its main partition, else itself."""
        ...

    def away(self, source: Partition) -> Collection[int]:
        """Return the offsets of a partition that have begun, and whose records are in Kafka alone; none if the
        partition is not owned."""
        ...

    def in_hand(self, source: Partition) -> Collection[int]:
        """Return all other offsets of a partition below the one that begins next, done or not."""
        ...

    def partition(self, source: Partition) -> Any:
        """Return what the lane knows of a partition that it owns. For tests that look into one kind of lane."""
        ...

    def seek_count(self, source: Partition) -> int:
        """Return how often a partition was sought, as its next records must say; 0 if it is not owned."""
        ...

    @property
    def size(self) -> int:
        """How many partitions and records a check of the lane looks at, about."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether no record is in memory, ready, or refused by Kafka."""
        ...

    @property
    def is_more_than_half_full(self) -> bool:
        """Whether more than half of the room is taken: then the lane looks at its partitions at each call."""
        ...

    def begin(self, grants: Sequence[AssignedPartition]) -> None:
        """Start partitions, and do nothing that follows from that before the next call of the lane."""
        ...

    def commit_nothing(self, now: Now) -> None:
        """Act as if all progress had been committed just now: the next commit waits a second."""
        ...


def view(lane: Lane) -> LaneView:
    """Return the answers of a lane."""
    return OldLane(lane) if isinstance(lane, Lane) else NextLane(lane)


class OldLane:
    """Of `core/lane`."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def main_partition(self, source: Partition) -> Partition:
        return self._lane.ownership.partitions[source].under or source

    def partition(self, source: Partition) -> Any:
        return self._lane.ownership.partitions[source]

    def seek_count(self, source: Partition) -> int:
        partition = self._lane.ownership.partitions.get(source)
        return 0 if partition is None else partition.seek_count

    @property
    def size(self) -> int:
        partitions = self._lane.ownership.partitions.values()
        return self._lane.shown.waiting() + sum(1 + partition.unsettled for partition in partitions)

    def begin(self, grants: Sequence[AssignedPartition]) -> None:
        self._lane.ownership.assigned(grants)

    def commit_nothing(self, now: Now) -> None:
        self._lane.commits.take(now)

    def away(self, source: Partition) -> Collection[int]:
        partition = self._lane.ownership.partitions.get(source)
        return () if partition is None else partition.tracker.dropped

    def in_hand(self, source: Partition) -> Collection[int]:
        partition = self._lane.ownership.partitions.get(source)
        return set() if partition is None else set(range(partition.tracker.next)) - partition.tracker.dropped

    @property
    def is_empty(self) -> bool:
        lane = self._lane
        return lane.ownership.load == 0 and not lane.ready and not lane.outbox.refused

    @property
    def is_more_than_half_full(self) -> bool:
        return self._lane.memory.more_than_half


class NextLane:
    """Of `core/next`."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self._partitions = lane.partitions

    def main_partition(self, source: Partition) -> Partition:
        under: Partition | None = self._partitions[source].kind.under
        return under or source

    def partition(self, source: Partition) -> Any:
        return self._partitions[source]

    def seek_count(self, source: Partition) -> int:
        return self._partitions[source].seek_count if source in self._partitions else 0

    @property
    def size(self) -> int:
        return sum(1 + len(partition.offsets.entries) for partition in self._partitions.values())

    def begin(self, grants: Sequence[AssignedPartition]) -> None:
        self._lane.ownership.begin_partitions(grants)

    def commit_nothing(self, now: Now) -> None:
        self._lane.machines.commits.take_batch(now)

    def away(self, source: Partition) -> Collection[int]:
        partition = self._partitions.get(source)
        entries = () if partition is None else partition.offsets.entries.values()
        return {entry.offset for entry in entries if entry.where.name == "AWAY"}

    def in_hand(self, source: Partition) -> Collection[int]:
        partition = self._partitions.get(source)
        return set() if partition is None else set(range(partition.offsets.next)) - set(self.away(source))

    @property
    def is_empty(self) -> bool:
        lane = self._lane
        return lane.room.load == 0 and not lane.ready and not lane.machines.outbox.refused

    @property
    def is_more_than_half_full(self) -> bool:
        is_rather_full: bool = self._lane.room.more_than_half
        return is_rather_full
