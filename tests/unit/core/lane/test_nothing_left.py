"""What a call of a lane has led to is done by it, or by a call that it asks for: nothing else may ever come."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from tests.sim.ladder_rig import LadderRig, rules, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

REFUNDS, READY = Partition("refunds", 0), Partition("billing-RETRY", 0)


def test_the_place_that_was_kept_for_a_topic_is_taken_once_that_is_lost() -> None:
    """Its own request may hang for as long as the service likes."""
    rig = Rig(concurrency=2)
    rig.assign(ORDERS, REFUNDS)
    rig.take_offsets([0, 1])
    assert len(rig.sent) == 1, "the other place is for the other topic"
    rig.run(2_000)
    rig.settle()
    rig.lane.lost([REFUNDS])
    rig.run(10)
    assert [sent.record.offset for sent in rig.sent] == [0, 1]


def test_the_place_that_was_kept_for_a_topic_is_taken_once_its_log_is_cut_short() -> None:
    rig = Rig(concurrency=2)
    rig.assign(ORDERS, REFUNDS)
    rig.take_offsets([0, 1])
    rig.settle()
    rig.lane.truncated(REFUNDS, 0)
    rig.run(10)
    assert len(rig.sent) == 2


def test_what_is_parked_is_given_up_once_the_policy_parks_no_more() -> None:
    rig = LadderRig(policy=replace(rules(), parks=True))
    rig.put(waiting(0, 1, parked=True))
    rig.take_over()
    rig.settle()
    assert rig.reader.wanted == []
    rig.lane.apply_policy(rules(), {})
    rig.run(100)
    assert rig.reader.wanted == [0]


def test_a_held_head_makes_room_for_the_next_one_although_the_other_lane_had_let_it_go() -> None:
    """Given room for one record of the queue, and a place that a record of the other lane has."""
    rig = LadderRig(concurrency=1, room=1_000)
    other = Rig(retry=True, beside=rig)
    other.assign(READY)
    other.take(record(0, source=READY, life=life(due_at=WALL)))
    rig.put(waiting(0), key=b"a")
    rig.put(waiting(1), key=b"b")
    rig.take_over(main=Progress(2))
    rig.bring()
    rig.lane.hold(Holds((Hold("h1", key=b"a"),)), rig.now)
    rig.settle()
    assert (rig.out(), rig.reader.wanted) == ([], [])
    other.answer()
    rig.clock.run(10)
    assert rig.reader.wanted == [1]
