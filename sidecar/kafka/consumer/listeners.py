"""What a lane hears from its consumer's thread: partitions that come and go, logs that were cut, records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sidecar.core.lane.partition import AssignedPartition, FetchedRecords
from sidecar.core.record import Partition


class AssignmentListener(Protocol):
    """Whom the assignment tells. Calls are made on the consumer's thread and return at once."""

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        """Partitions are ours now."""

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        """Partitions are revoked; `done` may be called from any thread once nothing of theirs is under way."""

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Partitions are not ours any more; nothing of theirs may be committed."""

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        """The log begins at `low` now, behind the offset `wanted` that was to be read next."""

    def truncated(self, partition: Partition, high: int) -> None:
        """The log ends at `high` now, before what was read already: the partition is not ours until it is granted."""


class RecordListener(AssignmentListener, Protocol):
    """Where the consumer hands things to."""

    def received(self, runs: Sequence[FetchedRecords]) -> None:
        """Records were read."""

    def full(self) -> bool:
        """Whether there is no room for more records."""
