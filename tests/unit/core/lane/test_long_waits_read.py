"""What a new owner reads in a queue: which of its records go out, when, and what means nothing any more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.lane.long_waits import KEEP_MS
from reconsume.sidecar.core.lane.partition import FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.retry_order import Order
from tests.sim import samples
from tests.sim.ladder_rig import QUEUE, LadderRig, behind, waiting
from tests.sim.samples import ORDERS, WALL


def test_what_the_group_has_done_in_a_queue_is_not_delivered_again() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for offset in range(4):
        rig.put(waiting(offset), key=b"k%d" % offset)
    rig.open(Progress(1, {2}))
    rig.look()
    rig.flow()
    assert rig.out() == [1, 3]


def test_records_of_a_key_go_out_by_their_order_wherever_their_copies_lie() -> None:
    """A redrive stands where the main partition ended when it was written, with a number."""
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for state in (waiting(7), waiting(2, redrives=1, sequence=2), behind(4), waiting(1, redrives=1, sequence=1)):
        rig.put(state)
    rig.open()
    rig.look()
    orders = []
    for _ in range(4):
        rig.flow()
        (sent,) = rig.sent
        assert sent.record.retry_state is not None
        orders.append(sent.record.retry_state.order)
        rig.answer()
    assert orders == [Order(1, 1), Order(2, 2), Order(4), Order(7)]


def test_a_head_goes_out_only_when_main_was_read_up_to_it_and_the_main_records_before_it_are_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.put(waiting(2))
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == []
    rig.arrive(b"a", b"b")
    rig.flow()
    assert rig.out() == [0, 1], "what stands before the head is not blocked by it"
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1, 2]


def test_a_main_record_before_a_head_that_is_out_waits_behind_it() -> None:
    """Main went back, as it does where a part of its progress is lost, and the head had gone out."""
    rig = LadderRig()
    rig.begin(main=Progress(5))
    rig.put(waiting(4))
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == [4]
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == [4]
    rig.take_it(4)
    rig.flow()
    assert rig.out() == [5]


def test_a_main_record_whose_copy_waits_is_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.put(waiting(1, due_in=60_000))
    rig.open()
    rig.look()
    rig.arrive(b"b", b"a", b"a")
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow(1_000)
    assert rig.kafka[ORDERS] == Progress(3)
    assert len(rig.log) == 2, "the third one is written behind it"


def test_a_main_record_without_a_timestamp_is_known_by_its_copy() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, due_in=60_000, timestamp=0))
    rig.open()
    rig.look()
    rig.take(samples.record(0, key=b"a", timestamp=-1))
    rig.flow(1_000)
    assert (len(rig.log), rig.kafka[ORDERS]) == (1, Progress(1))


def test_a_record_at_the_offset_of_one_of_a_former_log_is_another_one() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, due_in=60_000, timestamp=WALL - 1))
    rig.open()
    rig.look()
    rig.arrive(b"b", b"a")
    rig.take_it(0)
    rig.flow()
    assert [record.retry_state.id for record in rig.log.values() if record.retry_state] == ["orders:0:0", "orders:0:1"]


def test_a_wait_that_is_over_by_the_wall_clock_is_over() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0, due_in=-60_000), key=b"a")
    rig.put(waiting(1, due_in=700), key=b"b")
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == [0]
    rig.run(700 - rig.now.steady_ms - 1)
    assert rig.reader.wanted == []
    rig.flow(1)
    assert rig.out() == [0, 1]


def test_of_two_copies_of_a_record_the_one_with_more_retries_stands_and_the_other_is_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for times in (2, 1, 3):
        rig.put(waiting(0, times))
    rig.open()
    rig.look()
    rig.flow()
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(2, 3)]
    rig.take_it(0)
    rig.flow(1_000)
    assert rig.queue() == Progress(3)


@pytest.mark.parametrize("fault", ["bad-header: RETRY_ORDER is missing", "headers-unreadable"])
def test_a_copy_that_cannot_be_read_is_a_dead_letter_and_no_key_waits_for_it(fault: str) -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.log[0] = samples.record(0, source=QUEUE, key=b"a", fault=fault, headers=[])
    rig.open()
    rig.look()
    rig.arrive(b"a")
    assert rig.out() == [0]
    rig.run(20)
    (entry,) = rig.conclude().entries
    assert (entry.record.source, entry.writes[0].topic) == (QUEUE, rig.policy.names.dlq("orders"))
    rig.flow(1_000)
    assert rig.queue() == Progress(1)
    assert rig.lane.memory.load == rig.sent[0].record.weight


def test_the_dead_letter_of_an_unreadable_copy_ends_no_record_of_the_same_offset_in_main() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.log[0] = samples.record(0, source=QUEUE, fault="headers-unreadable", headers=None)
    rig.put(waiting(0, due_in=60_000))
    rig.open()
    rig.look()
    rig.flow()
    rig.arrive(b"a")
    assert rig.out() == []


def test_a_copy_without_a_place_is_a_dead_letter() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, order=None))
    rig.open()
    rig.look()
    rig.run(20)
    assert [copy.topic for copy in rig.conclude().entries[0].writes][:1] == [rig.policy.names.dlq("orders")]


def test_an_unreadable_copy_that_is_done_already_is_no_second_dead_letter() -> None:
    rig = LadderRig()
    rig.begin()
    rig.log[0] = samples.record(0, source=QUEUE, fault="headers-unreadable", headers=None)
    rig.open(Progress(0, {0}))
    rig.look()
    rig.run(20)
    assert not any(batch.entries for batch in rig.batches)


def test_a_copy_that_is_gone_when_it_is_read_is_counted_and_its_key_is_free() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for state in (waiting(0), behind(1), behind(2)):
        rig.put(state)
    rig.open()
    rig.look()
    del rig.log[0], rig.log[1]
    rig.flow()
    assert rig.lane.ownership.records_lost == {"orders": 2}
    assert rig.out() == [2]
    rig.take_it(2)
    rig.flow(1_000)
    assert rig.queue() == Progress(3)


def test_another_record_at_the_offset_of_a_head_is_not_delivered_in_its_place() -> None:
    """The queue was made anew, and its reader has not found that out yet."""
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0))
    rig.open()
    rig.look()
    rig.put(behind(5), at=7)
    rig.log[0] = replace(rig.log.pop(7), offset=0)
    rig.flow()
    assert rig.out() == []
    assert rig.lane.ownership.records_lost == {"orders": 1}


# --- its progress -------------------------------------------------------------------------------------------------


def test_a_queue_has_progress_as_soon_as_it_is_opened() -> None:
    rig = LadderRig()
    rig.begin()
    rig.open(Progress(4))
    rig.run(1_000)
    batch = rig.conclude()
    assert (batch.commits[QUEUE].progress, batch.commits[QUEUE].under) == (Progress(4), ORDERS)


def test_the_progress_of_a_queue_goes_behind_the_markers_at_its_end() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    rig.queues.read(FetchedRecords(QUEUE, 1, 0, [], 3), rig.now, caught_up=True)
    rig.settle()
    assert rig.queue() == Progress(3)
    assert rig.batches == []


def test_the_progress_of_an_idle_queue_is_committed_again_before_kafka_forgets_it() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    for _ in range(2):
        rig.run(KEEP_MS)
        (batch,) = rig.batches
        assert batch.commits.keys() == {QUEUE}
        rig.conclude()
