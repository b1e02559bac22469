"""An operator's decision, a hold and a queue: each record is decided once, and goes on where it was (5.7, 10.4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.copy_reads import Spans
from reconsume.sidecar.core.holds import NO_HOLDS, Hold, Holds
from reconsume.sidecar.core.lane import Lane, LaneOptions
from reconsume.sidecar.core.ledger import KeyLedger, QueuedCopy
from reconsume.sidecar.core.outcome import Failed, NotSent, Outcome, Postponed, Throttled
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.ports import Ports, ScannedRange
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.topics.attempt import Attempt
from reconsume.topics.decision_record import DecidedRange, DecisionRecord
from reconsume.topics.owner_notes import OwnerNotes
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import Commit, DeadLetter, Hop, Requeue
from tests.sim.ladder_rig import LadderRig, behind, rules, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record
from tests.sim.suspect_rigs import died, rig_of

QUEUE = Partition("billing-ORDERED-orders", 0)
HOUR = 3_600_000
PARKED = life(times=2, order=Order(7), due_at=0, parked=True)


class QueueRig(Rig):
    """A main lane with one queue, which holds what the test says."""

    def __init__(self, *copies: RetryState, parks: bool = True) -> None:
        rules = replace(policy(ladder=(10_000,), queued=True, retries=2), parks=parks)
        super().__init__(policy=rules, order="key", queues=self)
        self.copies = [self._copy(offset, state) for offset, state in enumerate(copies)]
        self.asked: list[int] = []
        self.made: dict[str, DecisionRecord] = {}
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
        ports = Ports(self, self._deliver, self._commit, self._wake, self._recall, self._notice, self, notes=self)  # type: ignore[arg-type]
        self.lane = Lane(rules, {}, ports, self.gate, LaneOptions(1 << 20, "key", None))
        self.clock.rigs.append(self)

    @staticmethod
    def _copy(offset: int, state: RetryState) -> Record:
        return record(offset, source=QUEUE, life=state, key=b"k", timestamp=WALL)

    def open(self, queue: Partition, epoch: int) -> None:
        """Nothing: the test opens it."""

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        """Nothing."""

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
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

    def said(self, how: str, ident: str = "n1", counts: tuple[int, int] = (0, 2), cycle: int = 0) -> None:
        """An operator decides about the record that waits; the decision is known, and its range is read."""
        ranges, (redrives, times) = (DecidedRange(*QUEUE, "", 0, 9),), counts
        self.made[ident] = DecisionRecord(
            how, "ann", "seen", WALL, ranges, id="orders:0:7", cycle=cycle, redrives=redrives, times=times
        )
        self.lane.decide(self.made, self.now)
        self.read_on()

    def read_on(self) -> None:
        """Bring what the lane asks for of its decisions: what is noted, which is nothing, and the ranges."""
        while self.notes_read:
            self.lane.notes_read(self.notes_read.pop(0), OwnerNotes(), self.now)
        while self.scans:
            source, epoch, begin, end = self.scans.pop(0)
            records = tuple(one for one in self.copies if one.offset >= begin)
            self.lane.scanned(ScannedRange(source, epoch, begin, end, records), self.now)
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
    assert acted.asked == []


def test_a_decision_that_is_known_before_the_queue_is_read_acts_once_it_is() -> None:
    """Given a range that is read before the owner has read the queue so far, then it waits for that."""
    rig = QueueRig()
    rig.copies.append(rig._copy(0, PARKED))
    rig.said("dead-letter")
    assert rig.asked == []
    assert rig.lane.queues is not None
    rig.lane.queues.read(FetchedRecords(QUEUE, 1, 0, rig.copies, 1), rig.now, caught_up=True)
    rig.run(1_000)
    rig.read_on()
    rig.bring()
    assert isinstance(rig.written()[0], DeadLetter)


def test_two_decisions_about_a_record_that_is_parked_again_try_it_once_each() -> None:
    """Given copies that name the last decision alone, then the one before it does not act again."""
    rig = LadderRig(policy=replace(rules(retries=2), parks=True))
    rig.put(waiting(7, 2, parked=True, due_at=0))
    rig.take_over(main=Progress(100))
    made = dict[str, DecisionRecord]()
    for ident in ("first", "second"):
        ranges = (DecidedRange(*QUEUE, "", 0, rig.end),)
        made[ident] = DecisionRecord("retry-now", "ann", "seen", WALL, ranges, id="orders:0:7", times=2)
        rig.lane.decide(made, rig.now)
        while rig.notes_read:
            rig.lane.notes_read(rig.notes_read.pop(), OwnerNotes(), rig.now)
        for _ in range(5):
            while rig.scans:
                source, epoch, begin, end = rig.scans.pop()
                records = tuple(one for at, one in rig.log.items() if begin <= at < end)
                rig.lane.scanned(ScannedRange(source, epoch, begin, end, records), rig.now)
            rig.flow(1_000)
        assert rig.out() == [7]
        rig.fail(7)
        rig.flow(9 * HOUR)
        assert rig.out() == [], "it is parked again, though its copy was written again meanwhile"


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


# --- queues of which an operator holds records, or settles them: others go on, and what is decided is ----------------


HELD = Holds([Hold("h", key=b"k")])


def opened(rig: LadderRig) -> None:
    """The queue is read up to its end, and what is due goes out."""
    rig.open()
    rig.look()
    rig.flow()


def test_a_held_record_can_be_settled_and_is_then_not_delivered() -> None:
    rig = QueueRig(replace(PARKED, parked=False, due_at=WALL))
    rig.lane.hold(HELD, rig.now)
    rig.run(10)
    rig.bring()
    rig.said("dead-letter")
    rig.bring()
    assert [type(written) for written in rig.written()] == [DeadLetter]
    rig.lane.hold(Holds(), rig.now)
    rig.run(100)
    assert not [sent for sent in rig.history if sent.record.source == QUEUE]


def test_copies_of_a_held_key_are_written_again_before_they_are_twelve_hours_old() -> None:
    rig = QueueRig(replace(PARKED, parked=False, due_at=WALL))
    rig.lane.hold(HELD, rig.now)
    rig.bring()  # it was asked for before
    rig.run(12 * HOUR)
    rig.bring()
    assert rig.written()


def test_a_record_that_is_held_in_memory_goes_back_to_its_queue_and_out_again_at_the_release() -> None:
    rig = LadderRig(concurrency=1)
    rig.begin(Progress(100))
    for number, key in enumerate((b"first", b"k")):
        rig.put(waiting(number), key=key)
    opened(rig)
    assert rig.out() == [0]
    rig.lane.hold(HELD, rig.now)
    rig.take_it(0)
    rig.flow(1_000)
    assert (rig.out(), rig.lane.room.load) == ([], 0)
    rig.lane.hold(Holds(), rig.now)
    rig.flow(1_000)
    assert rig.out() == [1]


def test_a_held_head_does_not_keep_other_keys_out_of_reach() -> None:
    rig = LadderRig(policy=rules(retries=60))
    rig.queues.within(Spans(16, 8))
    rig.begin(Progress(100))
    rig.put(waiting(0), key=b"k")
    rig.put(waiting(1), key=b"free")
    rig.lane.hold(HELD, rig.now)
    opened(rig)
    for _ in range(40):
        assert rig.out() == [1]
        rig.fail(1)
        rig.flow(60_000)


def test_a_large_held_head_and_sixty_four_of_them_do_not_keep_other_keys() -> None:
    for heads, size in ((1, 300_000), (64, 1)):
        rig = LadderRig(room=1 << 20)
        rig.begin(Progress(200))
        for number in range(heads):
            rig.put(waiting(number), key=b"k%d" % number, value=b"v" * size)
        rig.put(waiting(100, due_in=10_000), key=b"free")
        rig.lane.hold(Holds([Hold(f"h{number}", key=b"k%d" % number) for number in range(heads)]), rig.now)
        opened(rig)
        rig.flow(600_000)
        assert rig.out() == [100]


def test_only_as_many_records_are_asked_for_as_have_room() -> None:
    """Given heads that each take the share of a queue, then the next one is read when the one before is done."""
    rig = LadderRig(room=1 << 20)
    rig.begin(Progress(200))
    for number in range(8):
        rig.put(waiting(number), key=b"k%d" % number, value=b"v" * 300_000)
    rig.open()
    rig.look()
    assert len(rig.reader.wanted) == 1


def test_a_decision_about_a_parked_record_out_of_reach_is_carried_out() -> None:
    """Given all between open, then the first ones hop until progress reaches it."""
    rig = LadderRig(policy=replace(rules(), parks=True))
    rig.queues.within(Spans(16, 8))
    rig.begin(Progress(100))
    rig.put(waiting(0, 16, parked=True, due_at=0), key=b"a")
    for number in range(1, 17):
        rig.put(behind(number), key=b"a")
    rig.put(waiting(50, 16, parked=True, due_at=0), key=b"b")
    opened(rig)
    ranges = (DecidedRange(*QUEUE, "", 0, rig.end),)
    decision = DecisionRecord("dead-letter", "ann", "seen", WALL, ranges, id="orders:0:50", times=16)
    rig.lane.decide({"d": decision}, rig.now)
    rig.lane.notes_read(rig.notes_read.pop(), OwnerNotes(), rig.now)
    source, epoch, begin, end = rig.scans.pop()
    rig.lane.scanned(ScannedRange(source, epoch, begin, end, tuple(rig.log.values())), rig.now)
    for _ in range(50):
        rig.flow(60_000)
    facts = rig.queues.facts()[ORDERS]
    assert facts.blocked_keys == 1, "b is a dead letter"


def test_the_record_that_crashes_its_service_does_not_hop_however_old_its_copy_is() -> None:
    """It is known by the offset of its copy alone."""
    for hours in (1, 5):
        rig = LadderRig(policy=replace(rules(), max_deaths=3))
        rig.put(waiting(0), key=b"k")
        rig.put(waiting(1, due_in=10**9), key=b"other")
        rig.run(hours * HOUR)
        rig.begin(Progress(100, clean=True))
        rig.open(Progress(0, deaths=2, mark=0))  # the third owner in a row has died with it alone
        rig.look()
        rig.flow(5_000)
        rig.flow(60_000)
        assert rig.out() == []


def test_a_hold_does_not_clear_those_that_may_crash_the_service() -> None:
    rig = rig_of()
    rig.lane.hold(HELD, rig.now)
    rig.assign(ORDERS, resume=died(2))
    rig.take(*(record(number, key=b"k") for number in range(3)), end=3)
    rig.run(30_000)
    rig.settle()
    rig.lane.hold(Holds(), rig.now)
    rig.take(*(record(number, key=b"k") for number in range(3)))
    rig.run(1_000)
    assert len(rig.sent) <= 1, "they go one at a time"


# --- A person decides about a record of a queue that memory keeps: tried in place, throttled, postponed --------------


KINDS = {"dead-letter": DeadLetter, "commit": Commit, "retry-now": Requeue}
STAYS = (Failed("http-500"), Postponed(600_000), Throttled(60_000), NotSent("refused"))
"""After each of these the record comes again from memory, in a group whose ladder has ended."""
WAITS = STAYS[:3]
"""After these it waits for a while."""


@pytest.fixture
def rig() -> QueueRig:
    """A queue without a ladder whose head is out."""
    rig = QueueRig(replace(PARKED, parked=False, due_at=WALL))
    in_place = replace(rig.policy, queued=False, drained=True, in_place=InPlace(30_000))
    rig.lane.apply_policy(in_place, {})
    rig.run(10)
    rig.answer_all()
    rig.settle()
    rig.bring()
    assert [sent.record.source for sent in rig.sent] == [QUEUE]
    return rig


def decisions(rig: QueueRig) -> list[object]:
    """What is written of the queue's record, without any further answer."""
    return [entry.decision for batch in rig.settle() for entry in batch.entries if entry.record.source == QUEUE]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("outcome", STAYS)
def test_the_answer_comes_first_and_then_the_decision(rig: QueueRig, outcome: Outcome, how: str) -> None:
    rig.said(how)
    assert decisions(rig) == []
    rig.answer(outcome)
    (decision,) = decisions(rig)
    assert (type(decision), rig.sent) == (KINDS[how], [])


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("outcome", WAITS)
def test_what_waits_for_its_next_try_is_decided_at_once(rig: QueueRig, outcome: Outcome, how: str) -> None:
    rig.answer(outcome)
    rig.run(5)
    rig.said(how)
    (decision,) = decisions(rig)
    assert type(decision) is KINDS[how]
    rig.run(HOUR)
    assert rig.sent == []


@pytest.mark.parametrize("outcome", WAITS[:2])
def test_what_an_operator_holds_in_memory_is_decided_at_once(rig: QueueRig, outcome: Outcome) -> None:
    rig.answer(outcome)
    rig.lane.hold(Holds([Hold("h")]), rig.now)
    rig.run(HOUR // 2)
    rig.settle()
    assert rig.facts.partitions[QUEUE].counts.on_hold == 1
    rig.said("dead-letter")
    (decision,) = decisions(rig)
    assert isinstance(decision, DeadLetter)
    rig.lane.hold(NO_HOLDS, rig.now)
    rig.run(HOUR)
    assert rig.sent == []


def test_what_is_ready_while_nothing_is_sent_is_decided_at_once(rig: QueueRig) -> None:
    """An outage, a rate or a transaction in doubt may keep it for hours."""
    rig.answer(Postponed(1_000))
    rig.gate.doubts += 1
    rig.run(2_000)
    assert rig.lane.ready.has(QUEUE)
    rig.said("commit")
    (decision,) = decisions(rig)
    assert isinstance(decision, Commit)
    rig.gate.doubts -= 1
    rig.run(HOUR)
    assert rig.sent == []


@pytest.mark.parametrize("outcome", STAYS)
def test_a_decision_about_other_counts_changes_nothing(rig: QueueRig, outcome: Outcome) -> None:
    rig.said("commit", counts=(0, 1))
    rig.answer(outcome)
    rig.said("commit", "n2", counts=(1, 2))
    rig.run(HOUR)
    assert decisions(rig) == []
    assert len(rig.sent) == 1, "it is out again"


# --- `reconsume_parked_keys`: the keys whose first record is parked, also where a redriven letter came ---------------


def test_a_key_whose_first_record_can_go_is_not_parked() -> None:
    """Given a letter that was redriven to where main ended, and a later record that was parked before it was read."""
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 0, redrives=1, sequence=1), key=b"a")
    rig.take_over()
    facts = rig.lane.shown.facts(rig.now).queues[ORDERS]
    assert (facts.blocked_keys, facts.parked_keys) == (1, 0)


def test_a_key_of_two_parked_records_counts_once() -> None:
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 1, redrives=1, sequence=1, parked=True, due_at=0), key=b"a")
    rig.take_over()
    facts = rig.lane.shown.facts(rig.now).queues[ORDERS]
    assert facts.parked_keys <= facts.blocked_keys


def test_a_key_stays_parked_while_its_head_is_written_again_and_until_it_is_read_as_due() -> None:
    """Copies that lie long are written again, and where Kafka refuses copies that lasts."""
    ledger, identity, attempt = KeyLedger(), (7, 1_000), Attempt(0, 0, 2)
    parked = QueuedCopy(20, identity, b"a", Order(7), attempt, NEVER)
    ledger.read(parked)
    seen = list[int]()
    for copy in (replace(parked, offset=21), replace(parked, offset=22, due_ms=5)):
        entry = ledger.entry(identity)
        assert entry is not None
        assert ledger.take_aside(entry)
        assert ledger.taken(identity, entry.offset)
        seen.append(ledger.parked_keys)
        ledger.writing(identity, b"a", Order(7), attempt)
        seen.append(ledger.parked_keys)
        ledger.written(identity)
        seen.append(ledger.parked_keys)
        ledger.check()
        ledger.read(copy)
        ledger.check()
    assert seen == [1] * 6
    assert ledger.parked_keys == 0
    assert ledger.heads.next_at() == 5
