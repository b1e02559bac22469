"""A lane whose failing records wait in a queue topic, driven by hand.

The log of the queue is a list, and the reader does what it is asked only when the test lets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch, SettledRecord
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.queues import LongWaits
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import Copy
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL

QUEUE = Partition("billing-ORDERED-orders", 0)
WAITS = (10_000, 60_000)
"""ms before the first retry, and before each later one."""
FAIL = Failed("http-500", "no")


def rules(retries: int = 16, topics: tuple[str, ...] = ("orders",)) -> Policy:
    """A policy whose failing records wait in a queue, `WAITS` long."""
    return samples.policy(ladder=WAITS, retries=retries, topics=topics, queued=True)


class Reader:
    """The port `QueueReads`, which only notes what is asked of it."""

    def __init__(self) -> None:
        self.opened: list[tuple[Partition, int]] = []
        self.wanted: list[int] = []
        """The offsets of the records that are to be read."""
        self.ahead: list[int] = []
        """The offsets of those that are to be read ahead."""
        self.closed: list[Partition] = []
        self.known_to = 0
        """Up to where the lane knows the queue without having read it."""
        self.at_hand: list[Record] = []
        """The records that it may ask for soon."""

    def open(self, queue: Partition, epoch: int) -> None:
        self.opened.append((queue, epoch))

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        assert (queue, epoch) in self.opened
        self.wanted.append(offset)

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        assert (queue, epoch) in self.opened
        self.ahead += offsets

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
        assert (queue, epoch) in self.opened
        self.known_to = end
        self.at_hand += at_hand

    def close(self, queue: Partition) -> None:
        self.closed.append(queue)


class LadderRig(Rig):
    """An ordered lane with a ladder. Its main partition is `ORDERS`, and its queue `QUEUE`.

    What a transaction writes to the queue stands in `log`, by offset, with the records that a test puts there.
    """

    def __init__(self, *, policy: Policy | None = None, order: OrderBy = "key", **more: object) -> None:
        self.reader = Reader()
        self.log: dict[int, Record] = {}
        self.read_to = 0
        """What the reader has handed over of the log ends here."""
        self.next_main = 0
        self._in_kafka: CommitBatch | None = None
        super().__init__(policy=policy or rules(), order=order, queues=self.reader, **more)  # type: ignore[arg-type]

    # --- Kafka ---------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where the queue ends."""
        return max(self.log, default=-1) + 1

    def write(self, copy: Copy) -> None:
        """Append a copy to the queue, as the reader will see it."""
        assert (copy.topic, copy.exact, copy.spread) == (QUEUE.topic, True, QUEUE.number)
        state, fault = samples.read(copy.headers, self.policy, self.now.wall_ms)
        self._append(copy, state, fault, self.part().epoch)

    def put(self, state: RetryState, key: bytes | None = b"a", *, at: int | None = None, value: bytes = b"v") -> int:
        """Append a copy with this retry state to the queue, as a former owner has written it; return its offset. `at`:
        behind markers, or offsets that a compaction has left out."""
        headers = render_retry_headers(state, self.policy.names.group, QUEUE.topic)
        return self._append(Copy(QUEUE.topic, key, value, headers), state, "", 1, at)

    def _append(self, copy: Copy, state: RetryState | None, fault: str, epoch: int, at: int | None = None) -> int:
        at = self.end if at is None else at
        weight = weight_of(copy.key, copy.value, copy.headers, state)
        self.log[at] = Record(
            QUEUE, at, epoch, self.now.wall_ms, copy.key, copy.value, copy.headers, state, fault, weight
        )
        return at

    def conclude(self, **how: object) -> CommitBatch:  # type: ignore[override]
        if not how:
            self.reach_kafka()
        return super().conclude(**how)  # type: ignore[arg-type]

    def conclude_located(self) -> CommitBatch:
        """Commit the batch that is out, and tell the lane where its copies lie."""
        start = self.end
        self.reach_kafka()
        entries = [index for index, entry in enumerate(self.batches[0].entries) if copies_in(entry)]
        located = {index: (start + at, self.log[start + at].timestamp) for at, index in enumerate(entries)}
        return super().conclude(located=located)

    def reach_kafka(self) -> None:
        """Commit the batch that is out, without a word to the lane."""
        batch = self.batches[0]
        if batch is not self._in_kafka:
            self._in_kafka = batch
            for copy in copies_of(batch):
                self.write(copy)

    # --- the reader ----------------------------------------------------------------------------------------------

    def take_over(self, progress: Progress | None = None, *, main: Progress | None = None, epoch: int = 1) -> None:
        """Assign the main partition, and have its queue read up to its end."""
        self.begin(main, epoch)
        self.open(progress, epoch)
        self.look()

    def begin(self, main: Progress | None = None, epoch: int = 1) -> None:
        """Assign the main partition."""
        progress = main or Progress(0)
        self.next_main, self.read_to = progress.next, 0
        self.log = {offset: record_of(record, epoch) for offset, record in self.log.items()}
        self.lane.assigned([AssignedPartition(ORDERS, epoch, progress)], self.now)
        self.check()

    def open(self, progress: Progress | None = None, epoch: int = 1) -> None:
        """Say how far the group has read the queue."""
        progress = progress or Progress(0)
        self.read_to = progress.next
        self.queues.opened(AssignedPartition(QUEUE, epoch, progress), self.now)
        self.check()

    def look(self, *, most: int | None = None, caught_up: bool = True, epoch: int | None = None) -> None:
        """Hand over what the queue holds behind what was read, `most` records of it."""
        unread = [record for offset, record in sorted(self.log.items()) if offset >= self.read_to][:most]
        self.read_to = unread[-1].offset + 1 if unread else self.read_to
        epoch = self.part().epoch if epoch is None else epoch
        end = self.read_to if self.read_to == self.end else None
        self.queues.read(FetchedRecords(QUEUE, epoch, 0, unread, end), self.now, caught_up=caught_up)
        self.check()

    def bring(self) -> None:
        """Hand over the first record that was asked for by its offset."""
        at = self.reader.wanted.pop(0)
        self.queues.fetched(QUEUE, self.part().epoch, at, self.log.get(at), self.now)
        self.check()

    def flow(self, ms: int = 0) -> None:
        """Let time pass, then let Kafka and the reader do what they are asked until nothing is asked of them."""
        self.run(ms)
        for _ in range(200):
            if self.batches:
                self.conclude()
            elif self.read_to < self.end:
                self.look()
            elif self.reader.wanted:
                self.bring()
            else:
                self.run(20)  # what is settled waits that long for others
                if not self.batches:
                    return
        raise AssertionError("the lane asks without an end")

    # --- the service -----------------------------------------------------------------------------------------------

    def arrive(self, *keys: bytes | None) -> None:
        """Hand over the next records of the main partition, with these keys."""
        start = self.next_main
        self.next_main += len(keys)
        self.take(*(samples.record(start + at, key=key, epoch=self.part().epoch) for at, key in enumerate(keys)))

    def fail(self, offset: int, outcome: Outcome = FAIL) -> Record:
        """Answer the delivery of the record that stood at `offset` of the main topic: it fails, unless told
        otherwise."""
        return self.answer(outcome, self.out().index(offset))

    def take_it(self, offset: int) -> Record:
        """Accept the record that stood at `offset` of the main topic."""
        return self.fail(offset, COMMITTED)

    def out(self) -> list[int]:
        """Where the records stood in the main topic that are out."""
        return [origin(sent.record) for sent in self.sent]

    # --- questions -------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> LongWaits:
        """What the lane does with its queues."""
        assert self.lane.queues is not None
        return self.lane.queues

    def queue(self) -> Progress:
        """The progress of the queue that was committed last."""
        return self.kafka[QUEUE]


def origin(record: Record) -> int:
    """Where a record, or the first copy of it, stood in the main topic."""
    return int(record.id.rpartition(":")[2])


def record_of(record: Record, epoch: int) -> Record:
    """The record, as read under another assignment."""
    return replace(record, epoch=epoch)


def copies_in(entry: SettledRecord) -> list[Copy]:
    """What an entry writes to the queue."""
    return [copy for copy in entry.writes if copy.topic == QUEUE.topic]


def copies_of(batch: CommitBatch) -> list[Copy]:
    """What a batch writes to the queue."""
    return [copy for entry in batch.entries for copy in copies_in(entry)]


def states_of(batch: CommitBatch, policy: Policy) -> list[RetryState]:
    """The retry states that a batch writes to the queue."""
    states = [samples.read(copy.headers, policy, WALL)[0] for copy in copies_of(batch)]
    return [retry for retry in states if retry is not None]


def waiting(offset: int, times: int = 1, due_in: int = 0, *, sequence: int = 0, **more: object) -> RetryState:
    """The retry state of a record of the main topic that waits in the queue, due in so many ms."""
    state = RetryState(f"orders:0:{offset}", "orders", times, 0, WALL + due_in, WALL, WALL, "http-500: no")
    return replace(state, **{"order": Order(offset, sequence), **more})


def behind(offset: int) -> RetryState:
    """The retry state of a record that waits behind an earlier one of its key."""
    return waiting(offset, 0, behind=True, first_failed_at=0, reason="")
