"""Queues of which an operator holds records, or settles them: others go on, and what is decided is done."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.lane.queue_hops import Spans
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.policy_record import SettlementRecord
from reconsume.topics.transitions import DeadLetter
from tests.sim.ladder_rig import LadderRig, behind, rules, waiting
from tests.sim.samples import ORDERS, WALL, record
from tests.sim.suspect_rigs import died, rig_of
from tests.unit.core.lane.test_queue_copies import HOUR, PARKED, QUEUE, QueueRig

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
    assert (rig.out(), rig.lane.memory.load) == ([], 0)
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
    rig.queues.settle("orders:0:50", SettlementRecord(0, 16, "dead-letter", "seen", "ann", WALL, "n1"), rig.now)
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
