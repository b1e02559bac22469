"""A record of a queue goes out within the span of the first open one: whatever lies between, it comes into reach."""

from __future__ import annotations

from reconsume.sidecar.core.lane.membership_doubt import UNANSWERED_MS
from reconsume.sidecar.core.lane.queue_hops import Spans
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


def test_heads_within_reach_go_out_before_anything_hops_for_one_that_lies_further() -> None:
    """The one out of reach is due first: the others would be written again at the end in turn, and none go out."""
    rig = LadderRig()
    rig.queues.within(Spans(16, 100))
    rig.begin(MAIN)
    for number, due_in in ((1, 1_000), (2, 1_000), (40, 900)):
        rig.put(waiting(number, due_in=due_in), key=b"k%d" % number, at=number)
    rig.open()
    rig.look()
    rig.clock.steady_ms += 1_000  # as after a freeze: all are due at once
    rig.look()
    rig.flow()
    assert [sent.record.offset for sent in rig.sent] == [1, 2], "the one at 40 was due before them"
    rig.take_it(1)
    rig.take_it(2)
    rig.flow()
    assert rig.out() == [40]


def test_a_head_out_of_reach_is_looked_at_by_events_and_not_all_the_time() -> None:
    """What hops may wait for Kafka as long as that is away."""
    rig = far_apart(0, due_in=LATE, hop_span=100, span=16)
    rig.put(waiting(9), key=b"k9", at=17)
    rig.look()
    assert rig.reader.wanted == [0]
    rig.settle()
    rig.run(UNANSWERED_MS)
    assert rig.wake_at > rig.now.steady_ms + 60_000
