"""What is lost of a log, and what Kafka has not heard when a partition goes: each is counted, once."""

from __future__ import annotations

from reconsume.sidecar.core.progress import Progress
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS


def rig_of(*offsets: int) -> Rig:
    """A lane with these records out."""
    rig = Rig(concurrency=9)
    rig.assign(ORDERS)
    rig.take_offsets(offsets)
    return rig


def test_what_is_cut_off_unread_is_counted_and_progress_goes_on_behind_it() -> None:
    rig = rig_of(0, 1)
    rig.lane.cut(ORDERS, 1, 2, 10, rig.now)
    rig.answer_all()
    rig.settle()
    assert rig.lane.ownership.records_lost == {"orders": 8}
    assert rig.kafka[ORDERS] == Progress(10)


def test_a_cut_that_is_told_of_an_older_assignment_counts_nothing() -> None:
    rig = rig_of()
    rig.assign(ORDERS, epoch=2)
    rig.lane.cut(ORDERS, 1, 0, 10, rig.now)
    assert rig.lane.ownership.records_lost == {}


def test_what_was_open_in_a_log_that_is_shorter_now_is_counted_each_time() -> None:
    rig = rig_of(0, 1, 2, 3)
    rig.answer()
    rig.lane.truncated(ORDERS, 2)
    assert rig.lane.ownership.records_lost == {"orders": 2}
    assert rig.lane.ownership.partitions == {}
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets((0, 1), epoch=2)
    rig.lane.truncated(ORDERS, 1)
    assert rig.lane.ownership.records_lost == {"orders": 3}


def test_answers_that_are_not_in_kafka_are_unsaved_while_the_partition_is_here_and_after_it_is_lost() -> None:
    rig = rig_of(0, 1, 2)
    for count in (1, 2):
        rig.answer()
        assert (rig.lane.shown.unsaved(), rig.lane.shown.unsaved_at_loss()) == (count, 0)
    rig.lane.lost([ORDERS])
    assert (rig.lane.shown.unsaved(), rig.lane.shown.unsaved_at_loss()) == (2, 2)
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets((0,), epoch=2)
    rig.answer(place=1)
    assert (rig.lane.shown.unsaved(), rig.lane.shown.unsaved_at_loss()) == (3, 2)
    rig.settle()
    assert (rig.lane.shown.unsaved(), rig.lane.shown.unsaved_at_loss()) == (2, 2)
