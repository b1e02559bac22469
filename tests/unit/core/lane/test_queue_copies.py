"""Copies of a queue that are read and not delivered: those that are old, and those about which a person has decided."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from reconsume.sidecar.core.lane.admission import LaneOptions
from reconsume.sidecar.core.lane.lane import Lane
from reconsume.sidecar.core.lane.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Ports
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.policy_record import SettlementRecord
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import Commit, DeadLetter, Hop, Requeue
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record

QUEUE = Partition("billing-ORDERED-orders", 0)
HOUR = 3_600_000
PARKED = life(times=2, order=Order(7), due_at=0, parked=True)


class QueueRig(Rig):
    """A main lane with one queue, which holds what the test says."""

    def __init__(self, *copies: RetryState, parks: bool = True) -> None:
        rules = replace(policy(ladder=(10_000,), queued=True, retries=2), parks=parks)
        super().__init__(policy=rules, order="key")
        self.copies = [self._copy(offset, state) for offset, state in enumerate(copies)]
        self.asked: list[int] = []
        self._remake(rules)
        self.lane.assigned([AssignedPartition(ORDERS, 1, Progress(0))], self.now)
        assert self.lane.queues is not None
        self.lane.queues.opened(AssignedPartition(QUEUE, 1, Progress(0)), self.now)
        self.lane.queues.read(FetchedRecords(QUEUE, 1, 0, self.copies, len(copies)), self.now, caught_up=True)
        self.take(record(0, key=b"other"), end=8)

    def _remake(self, rules: Policy) -> None:
        """Make the lane again, with a port for its queue."""
        self.clock.rigs.clear()
        self.gate = Dispatcher(Pace(4))
        ports = Ports(self, self._deliver, self._commit, self._wake, self._recall, self._notice, self)  # type: ignore[arg-type]
        self.lane = Lane(rules, {}, ports, self.gate, LaneOptions(1 << 20, "key", None))
        self.clock.rigs.append(self)

    @staticmethod
    def _copy(offset: int, state: RetryState) -> Record:
        return record(offset, source=QUEUE, life=state, key=b"k", timestamp=WALL)

    def open(self, queue: Partition, epoch: int) -> None:
        """Nothing: the test opens it."""

    def known(
        self, queue: Partition, epoch: int, end: int, at_ms: int, at_hand: Sequence[Record], *, awaited: bool
    ) -> None:
        """Nothing."""

    def close(self, queue: Partition) -> None:
        """Nothing."""

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        self.asked.append(offset)

    def bring(self) -> None:
        """Read what was asked for."""
        assert self.lane.queues is not None
        asked, self.asked = self.asked, []
        for offset in asked:
            self.lane.queues.fetched(QUEUE, 1, offset, self.copies[offset], self.now)
        self.check()

    def said(self, how: str, nonce: str = "n1", counts: tuple[int, int] = (0, 2), cycle: int = 0) -> None:
        """A person decides about the record that waits."""
        assert self.lane.queues is not None
        settlement = SettlementRecord(*counts, how, "seen", "ann", WALL, nonce, cycle=cycle)
        self.lane.queues.settle("orders:0:7", settlement, self.now)
        self.check()

    def written(self) -> list[object]:
        """What is decided about records of the queue, once all is in Kafka."""
        self.answer_all()
        batches = self.settle()
        return [entry.decision for batch in batches for entry in batch.entries if entry.record.source == QUEUE]


def test_a_parked_copy_is_written_again_before_half_a_day_is_over_and_stays_parked() -> None:
    rig = QueueRig(PARKED)
    rig.run(2 * HOUR)
    assert rig.asked == []
    rig.run(10 * HOUR)
    assert rig.asked == [0]
    rig.bring()
    assert rig.written() == [Hop(PARKED, None)]
    assert not [sent for sent in rig.history if sent.record.source == QUEUE]


def test_each_decision_is_carried_out_without_a_delivery() -> None:
    for how, kind in (("dead-letter", DeadLetter), ("commit", Commit), ("retry-now", Requeue)):
        rig = QueueRig(PARKED)
        rig.said(how)
        rig.bring()
        (decision,) = rig.written()
        assert isinstance(decision, kind)
        assert not [sent for sent in rig.history if sent.record.source == QUEUE]


def test_a_decision_about_other_counts_or_one_that_was_carried_out_changes_nothing() -> None:
    rig = QueueRig(PARKED)
    rig.said("commit", counts=(0, 1))
    rig.said("commit", counts=(1, 2))
    rig.said("commit", cycle=1)
    assert rig.asked == []
    acted = QueueRig(replace(PARKED, settled="n1"))
    acted.said("retry-now", "n1")
    acted.bring()
    assert acted.written() == [Hop(replace(PARKED, settled="n1"), None)], "it is put back"
    acted.said("retry-now", "n1")
    assert acted.asked == []


def test_a_decision_that_is_known_before_the_queue_is_read_acts_once_it_is() -> None:
    rig = QueueRig()
    rig.said("dead-letter")
    rig.copies.append(rig._copy(0, PARKED))
    assert rig.lane.queues is not None
    rig.lane.queues.read(FetchedRecords(QUEUE, 1, 0, rig.copies, 1), rig.now, caught_up=True)
    rig.bring()
    assert isinstance(rig.written()[0], DeadLetter)


def test_a_record_that_is_out_is_answered_first() -> None:
    rig = QueueRig(replace(PARKED, parked=False, due_at=WALL))
    rig.run(10)
    rig.bring()
    rig.said("dead-letter")
    assert (rig.asked, len([sent for sent in rig.sent if sent.record.source == QUEUE])) == ([], 1)
    (decision,) = rig.written()
    assert isinstance(decision, Commit)
    assert rig.settle() == []


def test_what_is_parked_is_a_dead_letter_where_the_group_parks_no_longer() -> None:
    rig = QueueRig(PARKED, parks=False)
    rig.bring()
    (decision,) = rig.written()
    assert isinstance(decision, DeadLetter)
    assert (decision.reason, decision.retry_state.times) == ("http-500", 2)
