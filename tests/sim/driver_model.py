"""Between a lane and its consumer's thread: what the product's code tells reaches the lane on its loop, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.runtime.loop_bridge import HAND_OVERS

if TYPE_CHECKING:
    from tests.sim.process import Process


class DriverModel:
    """The driver of one lane in one process. `lane` is set by who makes it."""

    lane: Lane

    def __init__(self, process: Process, group: str) -> None:
        self.process, self.group = process, group
        self.world, self.random = process.world, process.world.random
        self._handed_at = self._given = self._taken = 0

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        """Partitions are ours now."""
        self.world.granted(self, grants)
        self.on_loop(partial(self._assigned, grants))

    def _assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.lane.assigned(grants, self.process.now())

    def received(self, runs: Sequence[FetchedRecords], weight: int) -> None:
        """Records were read."""
        self._given += 1
        self.on_loop(partial(self._received, runs))

    def _received(self, runs: Sequence[FetchedRecords]) -> None:
        self._taken += 1
        self.lane.received(runs, self.process.now())

    def full(self) -> bool:
        """Whether the lane has no room for more."""
        return self._given - self._taken >= HAND_OVERS or self.lane.is_full_with(0)

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Partitions are not ours any more."""
        self.on_loop(partial(self.lane.lost, partitions))

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        """The log of a partition begins later now."""
        self.on_loop(partial(self._cut, partition, epoch, wanted, low))

    def _cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self.world.cut(self, partition, low)
        self.lane.cut(partition, epoch, wanted, low, self.process.now())

    def truncated(self, partition: Partition, high: int) -> None:
        """The log of a partition ends sooner now."""
        if high < sys.maxsize:  # else it begins once more, and what has begun was not cut
            self.world.truncated(self, partition)
        self.on_loop(partial(self.lane.truncated, partition, high))

    def _release(self, partitions: Sequence[Partition], given_up: Callable[[], None]) -> None:
        self.lane.release(partitions, given_up, self.process.now())

    def on_loop(self, act: Callable[[], None]) -> None:
        """From the consumer's thread to the loop: in order, after a moment."""
        self._handed_at = max(
            self._handed_at, self.world.steady_ms + self.random.choice((0, 0, 2, self.world.plan.stall))
        )
        self.process.later(self._handed_at - self.world.steady_ms, act)
