"""Whom the threads that read Kafka call: the lane they read for, and the process, which may restart in place.

Calls to a lane are made on the thread that reads, and must return at once. A thread that has a doubt of the closed list
(`RestartReason`) asks for a restart; `runtime/restarts.py` decides and acts. These are doubts that no call of the
client removes. Everyday events (a rebalance, an aborted transaction, a broker that does not respond, a log that
retention has cut, renewed credentials) are no causes, and neither is a missing topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition, Record


class RestartReason(StrEnum):
    """The closed list of reasons; also the label of the metric and the `reason` in `/status`."""

    TOPIC_RECREATED = "topic-recreated"
    """A main topic was deleted and created again: the client's positions are those of the former log."""
    QUEUE_TOPIC = "queue-topic"
    """A queue topic was created, or recreated, while the process runs."""
    CLIENT_DEAF = "client-deaf"
    """A client receives nothing of a partition, although its log has records that were not read."""


class RestartCause(NamedTuple):
    """One doubt about one topic.

    `incarnation`: Kafka's id of the topic, with the cluster's; empty if it is not known. `broken`: what the process has
    read of the topic is not true any more, or a client of its own is of no use, so that it must not wait for long.
    """

    reason: RestartReason
    topic: str
    incarnation: str
    broken: bool = True


AskRestart: TypeAlias = Callable[[RestartCause], bool]
"""Asks for a restart in place, on any thread, and returns at once. False: there will be none, since the process has
restarted for this reason and this incarnation of the topic before."""


def no_restart(_cause: RestartCause) -> bool:
    """Return False: the caller goes on without a restart."""
    return False


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


class QueueListener(Protocol):
    """The receiver of what lies in queues. Calls are made on the thread that reads them, and must return at once."""

    def queue_opened(self, grant: AssignedPartition) -> None:
        """Begin with a queue."""

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        """Go on without a queue: there is no such partition."""

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Drop queues with their main partitions; commit nothing of them."""

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        """Reckon with what was not read yet being gone: the log begins later now, and ends at `end`."""

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        """Take over what lies in a queue."""

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        """Take over a record that was read by its offset; None: it is gone."""

    def queue_full(self) -> bool:
        """Return whether nothing more may be handed over for now."""
