"""How partitions come and go: what is out is waited for, nothing late is believed, nothing undone is committed."""

import pytest

from sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome, Throttled
from sidecar.core.progress import Progress
from sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

BAD = Failed("http-500")
OTHER = Partition("orders", 1)


def begun(*offsets: int, concurrency: int = 2) -> Rig:
    rig = Rig(concurrency=concurrency)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(offsets)
    return rig


def test_a_revoked_partition_waits_for_what_is_out_and_is_committed_clean() -> None:
    rig = begun(0, 1, 2, 3)
    given_up = rig.release(ORDERS)
    rig.answer()
    assert rig.out_offsets() == [1]  # nothing more is released
    assert not given_up
    rig.answer()
    assert not given_up
    assert rig.conclude().commits[ORDERS].progress == Progress(2, clean=True)
    assert given_up == ["given up"]
    assert ORDERS not in rig.lane.ownership.partitions
    assert rig.lane.ownership.load == 0


def test_a_failure_during_the_wait_is_written_before_the_partition_is_given_up() -> None:
    rig = begun(0, 1)
    given_up = rig.release(ORDERS)
    rig.answer(BAD)
    rig.answer()
    rig.run(25)
    batch = rig.conclude()
    assert [entry.record.offset for entry in batch.entries] == [0]
    while rig.batches:
        batch = rig.conclude()
    assert batch.commits[ORDERS].progress == Progress(2, clean=True)
    assert given_up


def test_a_partition_with_nothing_out_is_committed_clean_at_once() -> None:
    rig = begun()
    given_up = rig.release(ORDERS)
    assert rig.conclude().commits[ORDERS].progress == Progress(0, clean=True)
    assert given_up


def test_a_partition_that_is_not_ours_is_given_up_at_once() -> None:
    assert begun().release(Partition("orders", 9))


@pytest.mark.parametrize("outcome", [Throttled(5_000), NotSent("refused"), CANCELLED])
def test_what_was_not_done_at_the_end_is_left_to_the_next_owner(outcome: Outcome) -> None:
    rig = begun(0, 1)
    given_up = rig.release(ORDERS)
    rig.answer(outcome)
    rig.answer()
    assert rig.conclude().commits[ORDERS].progress == Progress(0, frozenset({1}), clean=True)
    assert given_up
    rig.run(60_000)
    assert len(rig.history) == 2


def test_a_partition_is_not_given_up_while_its_last_commit_is_under_way() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    given_up = rig.release(ORDERS, OTHER)
    rig.answer()  # orders[0] is idle: its progress goes out
    assert list(rig.batches[0].commits) == [ORDERS]
    rig.answer()  # orders[1] is idle too
    rig.conclude(again=[])  # but the commit came to nothing
    assert ORDERS in rig.lane.ownership.partitions
    rig.run(2_000)
    batch = rig.conclude()
    assert batch.commits[ORDERS].progress == Progress(1, clean=True)
    assert batch.commits[OTHER].progress == Progress(1, clean=True)
    assert given_up


def test_each_release_ends_by_itself() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    first, second = rig.release(ORDERS), rig.release(OTHER)
    rig.answer(place=1)
    rig.conclude()
    assert (first, second) == ([], ["given up"])
    rig.answer()
    rig.conclude()
    assert first


def test_a_lost_partition_commits_nothing() -> None:
    rig = begun(0, 1, 2)
    rig.answer(BAD)
    rig.answer()
    rig.lane.ownership.lost([ORDERS])
    rig.answer_all(BAD)
    rig.conclude(fenced=[ORDERS])  # what was under way came too late
    rig.run(10_000)
    assert not rig.batches
    assert not rig.kafka
    assert rig.lane.counters.fenced_answers == 1  # the third was sent before the loss
    assert rig.lane.ownership.load == 0


def test_a_loss_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    rig.lane.ownership.lost([ORDERS])
    assert given_up


def test_an_assignment_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    assert rig.lane.ownership.closing
    rig.assign(ORDERS, epoch=2)
    assert given_up
    assert not rig.lane.ownership.closing


def test_a_late_answer_of_an_older_assignment_is_counted_and_dropped() -> None:
    rig = begun(0, 1)
    rig.lane.ownership.lost([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    late = rig.sent.pop(0)
    late.reply(late.record, COMMITTED, rig.now)
    assert rig.lane.counters.fenced_answers == 1
    assert rig.part().tracker.snapshot() == Progress(0)


def test_records_of_an_older_assignment_are_dropped() -> None:
    rig = begun()
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets([0, 1], epoch=1)
    assert not rig.sent


def test_a_batch_of_an_older_assignment_settles_nothing_in_the_new_one() -> None:
    rig = begun(0)
    rig.answer(BAD)
    rig.run(25)
    rig.lane.ownership.lost([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    rig.conclude()
    assert (rig.part().unsettled, rig.part().tracker.snapshot()) == (0, Progress(0))
    assert rig.out_offsets() == [0]


def test_a_fenced_partition_is_dropped_and_the_rest_of_the_batch_goes_again() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    rig.answer(BAD)
    rig.run(25)
    rig.answer(BAD)
    rig.conclude(again=[])
    rig.run(25)
    rig.conclude(fenced=[ORDERS])
    assert list(rig.lane.ownership.partitions) == [OTHER]
    (batch,) = rig.settle()[:1]
    assert [entry.record.source for entry in batch.entries] == [OTHER]
    assert rig.part(OTHER).tracker.snapshot() == Progress(1)
    assert rig.lane.ownership.load == 0
