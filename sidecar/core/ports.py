"""The three ports through which the core acts on the world: fetch, deliver, commit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeAlias

from sidecar.core.commit_batch import CommitBatch
from sidecar.core.counters import Histogram
from sidecar.core.outcome import Outcome
from sidecar.core.record import Now, Partition, Record

Reply: TypeAlias = Callable[[Record, Outcome, Now], None]
"""Called exactly once for each delivery, later, from the event loop, never from inside `Deliver`."""


class Deliver(Protocol):
    """Hands a record to whoever answers for it (an HTTP service; later a lease, or the broker)."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; `reply` gets its outcome. Never raises for what the service does."""


class Fetch(Protocol):
    """Steers what a lane's consumer reads. Calls return at once and take effect in order, on the consumer's thread.

    A call for an assignment that has ended by then does nothing: it must not stop the partition's next one.
    """

    def pause(self, partition: Partition, epoch: int) -> None:
        """Stop fetching the partition; what was fetched and not handed over is dropped."""

    def resume(self, partition: Partition, epoch: int, offset: int, turn: int) -> None:
        """Seek to `offset` and go on; records handed over from then on carry `turn`."""


class Commit(Protocol):
    """Commits settled records. At most one batch is out at a time; the lane's `committed` gets its result."""

    def __call__(self, batch: CommitBatch) -> None:
        """Start the transaction of one batch."""


Notice: TypeAlias = Callable[[str, Partition, int, int], None]
"""Told, for the log, what happened (`taken-up`, `quarantined`) to which partition after how many deaths, and where."""


class Recall(Protocol):
    """Takes deliveries of some partitions back. Whatever comes back is replied as Cancelled, later."""

    def __call__(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Give back what the service does not have yet; when `lost`, what it has too: no answer would count."""


def nothing_to_recall(partitions: Collection[Partition], *, lost: bool) -> None:
    """For a delivery that is with the service as soon as it is made."""


def nobody_to_tell(what: str, partition: Partition, deaths: int, offset: int) -> None:
    """For a lane whose log nobody reads."""


class Ports(NamedTuple):
    """The ways out of a lane. `wake` asks for a call of `tick` at a steady time (ms)."""

    fetch: Fetch
    deliver: Deliver
    commit: Commit
    wake: Callable[[int], None]
    recall: Recall = nothing_to_recall
    notice: Notice = nobody_to_tell


class Delivery(Protocol):
    """The ports `Deliver` and `Recall` in one, for both lanes. Made and called on the event loop."""

    durations: Histogram
    """Seconds that deliveries took, of those that were sent."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; `reply` gets its outcome later, exactly once."""

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Give back what the service does not have yet; when `lost`, what it has too: no answer would count."""

    def close(self) -> None:
        """Take no more deliveries; what is not with the service is cancelled."""
