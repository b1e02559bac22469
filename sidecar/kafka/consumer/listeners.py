"""The calls that a lane gets from its consumer's thread: partitions that come and go, logs that were cut, records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition


class AssignmentListener(Protocol):
    """The receiver of changes in the assignment. Calls are made on the consumer's thread and must return at once."""

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        """Take over partitions that are ours now."""

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        """Give up revoked partitions; call `done`, from any thread, once nothing of theirs is under way."""

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Drop partitions that are not ours any more; commit nothing of them."""

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        """Continue a partition whose log now begins at `low`, after the offset `wanted` that was to be read next."""

    def truncated(self, partition: Partition, high: int) -> None:
        """Drop a partition whose log now ends at `high`, before what was read.

        It is not ours until it is assigned again.
        """


class RecordListener(AssignmentListener, Protocol):
    """The receiver of records and of changes in the assignment."""

    def received(self, runs: Sequence[FetchedRecords], weight: int) -> None:
        """Take over records that were read. `weight`: what they count for in memory together, in bytes."""

    def full(self) -> bool:
        """Return whether there is no room for more records."""
