"""A record of a queue goes out within the span of the first open one: whatever lies between, it comes into reach."""

from __future__ import annotations

from sidecar.core.lane.queue_hops import Spans
from tests.sim.ladder_rig import LadderRig, behind, waiting
from tests.unit.core.lane.test_long_waits_bounds import LATE, MAIN, far_apart


def test_what_lies_further_than_progress_can_name_is_not_delivered() -> None:
    rig = far_apart(0, 15, 16, due_in=0, hop_span=100, span=16)
    assert rig.reader.wanted == [0, 15]
    rig.bring()
    rig.bring()
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1, 2]


def test_records_that_are_not_due_hop_until_a_head_far_behind_them_can_go_out() -> None:
    rig = far_apart(0, 1, 2, hop_span=100, span=16)
    rig.put(waiting(9), key=b"k9", at=17)
    rig.look()
    assert rig.reader.wanted == [0, 1], "no more of them than keep it from going out"
    rig.flow()
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(17, 1)]
    rig.take_it(9)
    rig.settle()
    assert rig.queue().covers(17)


def test_a_head_behind_a_queue_of_which_all_is_open_goes_out() -> None:
    """Its retry is written at the end, too far from the first of those that wait behind it."""
    rig = LadderRig()
    rig.queues.within(Spans(16, 8))
    rig.begin(MAIN)
    rig.put(waiting(0, 2), key=b"a", at=20)
    for number in range(1, 20):
        rig.put(behind(number), key=b"a", at=number)
    rig.open()
    rig.look()
    for number in range(20):
        rig.flow()
        rig.take_it(number)
    rig.settle()
    assert rig.queue().next >= rig.end - 1
    assert len(rig.history) == 20


def test_a_head_out_of_reach_is_looked_at_by_events_and_not_all_the_time() -> None:
    """What hops may wait for Kafka as long as that is away."""
    rig = far_apart(0, due_in=LATE, hop_span=100, span=16)
    rig.put(waiting(9), key=b"k9", at=17)
    rig.look()
    assert rig.reader.wanted == [0]
    rig.settle()
    assert rig.wake_at > rig.now.steady_ms + 60_000
