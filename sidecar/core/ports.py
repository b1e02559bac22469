"""The ports through which the core acts on the world: fetch, deliver, commit, wake, recall and notice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeAlias

from sidecar.core.commit_batch import CommitBatch
from sidecar.core.counters import Histogram
from sidecar.core.outcome import Outcome
from sidecar.core.record import Now, Partition, Record

Reply: TypeAlias = Callable[[Record, Outcome, Now], None]
"""Called exactly once for each delivery: later, from the event loop, never from inside `Deliver`."""


class Deliver(Protocol):
    """The port that hands a record to the part that answers for it: an HTTP service, a lease, or the broker."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; give its outcome to `reply` later. Must not raise for what the service does."""


class Fetch(Protocol):
    """The port that controls what a lane's consumer reads.

    Calls return at once and take effect in order, on the consumer's thread. A call for an assignment that has ended by
    then does nothing: it must not stop the partition's next assignment.
    """

    def pause(self, partition: Partition, epoch: int) -> None:
        """Stop fetching the partition; drop what was fetched and not handed over."""

    def resume(self, partition: Partition, epoch: int, offset: int, turn: int) -> None:
        """Seek to `offset` and fetch again; records handed over from then on carry `turn` as their seek count."""


class Commit(Protocol):
    """The port that commits settled records. At most one batch is in flight; the lane's `committed` gets its result."""

    def __call__(self, batch: CommitBatch) -> None:
        """Start the transaction of one batch."""


Notice: TypeAlias = Callable[[str, Partition, int, int], None]
"""Called for the log: what happened, the partition, a number and an offset.

The number is that of crashes (`taken-up`, `quarantined`), or of copies that Kafka refuses (`blocked`, `unblocked`).
"""


class Recall(Protocol):
    """The port that withdraws deliveries of some partitions. Each withdrawn one is replied as Cancelled, later."""

    def __call__(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Withdraw what the service does not have yet; if `lost`, also what it has: no answer would count."""


def nothing_to_recall(partitions: Collection[Partition], *, lost: bool) -> None:
    """Do nothing: for a delivery that is with the service as soon as it is made."""


def nobody_to_tell(what: str, partition: Partition, number: int, offset: int) -> None:
    """Do nothing: for a lane that has no log."""


class Ports(NamedTuple):
    """The ports of a lane. `wake` asks for a call of `tick` at a steady time (ms)."""

    fetch: Fetch
    deliver: Deliver
    commit: Commit
    wake: Callable[[int], None]
    recall: Recall = nothing_to_recall
    notice: Notice = nobody_to_tell


class Delivery(Protocol):
    """The ports `Deliver` and `Recall` in one, for both lanes. Made and called on the event loop."""

    durations: Histogram
    """Seconds that deliveries took, only of those that were sent."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; give its outcome to `reply` later, exactly once."""

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Withdraw what the service does not have yet; if `lost`, also what it has: no answer would count."""

    def close(self) -> None:
        """Accept no more deliveries; cancel those that are not with the service."""
