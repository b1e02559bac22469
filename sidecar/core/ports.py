"""The ports through which the core acts on the world: fetch, deliver, commit, wake, recall and notice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Now, Partition, Record

Reply: TypeAlias = Callable[[Record, Outcome, Now], None]
"""Called exactly once for each delivery: later, from the event loop, never from inside the call that delivers."""


class Fetch(Protocol):
    """The port to a lane's consumer. The lane states what it wants, and the consumer's thread does what is missing."""

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        """State how a partition is to be fetched from now on, in place of the last statement. Returns at once.

        A statement about an assignment that has ended does nothing: it must not stop the partition's next assignment.
        """


Notice: TypeAlias = Callable[[str, Partition, int, int], None]
"""Called for the log: what happened, the partition, a number and an offset.

The number is that of crashes (`taken-up`, `crashing-record`), of copies that Kafka refuses (`blocked`, `unblocked`),
of chunks about another log (`notes-former`), or the cycle after a reset (`position-reset`).
"""


Filling: TypeAlias = Callable[[Partition, int, int, float, Mapping[str, int]], None]
"""Called for the log when much waits in the queue of a main partition.

How many records do, how many may, which share of what may wait that is (`owned_queue.fill_of`), and of how many the
largest keys are, by the id of their first record.
"""


Recall: TypeAlias = Callable[..., None]
"""`Delivery.recall`, which is called with partitions and `lost`."""


class QueueReads(Protocol):
    """The port that reads the queue partitions of a lane. Calls return at once, and take effect in order.

    A queue partition is owned with its main partition, and has its epoch. A call for an assignment that has ended by
    then does nothing.
    """

    def open(self, queue: Partition, epoch: int) -> None:
        """Find out how far the group has read a queue (`LongWaits.opened`), then read it from there on, all the time
        (`LongWaits.read`)."""

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        """Read one record again (`LongWaits.fetched`)."""

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        """Read records that are fetched soon, in this order: a fetch of one that was read waits for nothing."""

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
        """Hand over nothing of a queue below `end`: the lane knows it. It may ask soon for the records `at_hand`, as
        who reads them would know them."""

    def close(self, queue: Partition) -> None:
        """Read a queue no more."""


class ScannedRange(NamedTuple):
    """Committed records of a partition from the offset `begin` on. `next`: where the next scan begins; all records
    before it are among them."""

    source: Partition
    epoch: int
    begin: int
    next: int
    records: tuple[Record, ...]


class NotesReads(Protocol):
    """The port that reads what owners have noted in the policy topic, and ranges of partitions beside the consumer.

    Calls return at once, and are answered once each, in their order."""

    def read_notes(self, wanted: Mapping[Partition, int]) -> None:
        """Read what is noted about these partitions, which are owned under these epochs: all that Kafka has by now, and
        what open transactions make of it (`Lane.notes_read`)."""

    def scan(self, source: Partition, epoch: int, begin: int, end: int) -> None:
        """Read committed records of a partition from `begin` up to `end`, or a part of them (`Lane.scanned`)."""


class NoNotes:
    """The notes of a lane without a policy topic."""

    def read_notes(self, wanted: Mapping[Partition, int]) -> None:
        """Raise RuntimeError: nothing would ever read them."""
        raise RuntimeError(f"this lane reads no notes, and {sorted(wanted)} have some")

    def scan(self, source: Partition, epoch: int, begin: int, end: int) -> None:
        """Raise RuntimeError, as `read_notes`."""
        raise RuntimeError(f"this lane scans nothing, and {source} is to be read from {begin} to {end}")


class Delivery(Protocol):
    """The port that hands records to the part that answers for them: an HTTP service, a lease, or the broker.

    One serves both lanes. It is made and called on the event loop."""

    @property
    def durations(self) -> Histogram:
        """Seconds that deliveries took, only of those that were sent."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; give its outcome to `reply` later. Must not raise for what the service does."""

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Withdraw what the service does not have yet; if `lost`, also what it has: no answer would count.

        Each withdrawn delivery is replied as Cancelled, later.
        """

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Give back what is held and the service does not have yet; each is replied as Withdrawn, later."""

    def close(self) -> None:
        """Accept no more deliveries; cancel those that are not with the service."""


class NoDelivery:
    """The delivery of relay mode, where the service reads the ready topic itself. No record ever comes here."""

    def __init__(self) -> None:
        self.durations = Histogram((1.0,))

    def __call__(self, record: Record, reply: Reply) -> None:
        """Raise RuntimeError: a record here is a bug, because it would be neither delivered nor moved."""
        raise RuntimeError(f"a relay delivers nothing: {record.source}@{record.offset}")

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Do nothing: no record is out."""

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Do nothing: no record is out."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def nothing_to_withdraw(is_held: Callable[[Record], bool]) -> None:
    """Do nothing: what is delivered is with the service at once."""


def nobody_to_tell(what: str, partition: Partition, number: int, offset: int) -> None:
    """Do nothing: for a lane that has no log."""


def nobody_to_name(partition: Partition, waiting: int, most: int, fill: float, keys: Mapping[str, int]) -> None:
    """Do nothing, as `nobody_to_tell`."""


def nothing_to_repeat(partitions: Collection[Partition]) -> None:
    """Do nothing: for a lane without a consumer."""


class Ports(NamedTuple):
    """The ports of a lane.

    `deliver` and `recall` are a Delivery's. `commit` starts the transaction of one batch: at most one is in flight, and
    the lane's `committed` gets its result. `wake` asks for a call of `tick` at a steady time (ms). `queues`: of a lane
    whose order survives long waits. `withdraw` is a Delivery's. `repeat_takeover`: has the consumer begin once more
    with partitions that the lane has let go, at the group's progress; those that it has lost are left out. `notes`: of
    what owners have noted.
    """

    fetch: Fetch
    deliver: Callable[[Record, Reply], None]
    commit: Callable[[CommitBatch], None]
    wake: Callable[[int], None]
    recall: Recall
    notice: Notice = nobody_to_tell
    queues: QueueReads | None = None
    filling: Filling = nobody_to_name
    withdraw: Callable[[Callable[[Record], bool]], None] = nothing_to_withdraw
    repeat_takeover: Callable[[Collection[Partition]], None] = nothing_to_repeat
    notes: NotesReads = NoNotes()
