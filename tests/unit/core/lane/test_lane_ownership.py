"""How partitions come and go: what is out is waited for, nothing late is believed, nothing undone is committed."""

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome, Throttled
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, life, record

BAD = Failed("http-500")
OTHER = Partition("orders", 1)


def begun(*offsets: int, concurrency: int = 3) -> Rig:
    """Two of the three places are for one partition, because there are two."""
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
    assert rig.conclude().commits[ORDERS].progress == Progress(1, clean=True), "it does not wait for the other answer"
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
    assert not given_up
    rig.assign(ORDERS, epoch=2)
    assert given_up


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


def test_deliveries_are_withdrawn_at_a_revocation_and_again_when_the_partition_is_gone() -> None:
    rig = begun(0)
    rig.recalls.clear()
    rig.release(ORDERS)
    assert rig.recalls == [({ORDERS}, False)]  # what the service has may still be answered
    rig.answer()
    rig.conclude()
    assert rig.recalls[1:] == [({ORDERS}, True)]
    rig.lane.ownership.lost([OTHER])
    assert rig.recalls[2:] == [({OTHER}, True)]


# --- what goes on from owner to owner ------------------------------------------------------------------------------


def test_where_a_group_starts_is_committed_although_nothing_was_done() -> None:
    """`start: latest`: else a crash of an idle sidecar would move the start."""
    rig = Rig()
    rig.assign(ORDERS, resume=Progress(5, ours=False, width=3))
    rig.lane.tick(rig.now)
    rig.settle()
    assert rig.kafka == {ORDERS: Progress(5, width=3)}


@pytest.mark.parametrize("resume", [Progress(5, width=3), Progress(5, ours=False), Progress(5)])
def test_a_start_that_is_known_or_the_first_offset_is_not_committed(resume: Progress) -> None:
    rig = Rig()
    rig.assign(ORDERS, resume=resume)
    rig.lane.tick(rig.now)
    assert rig.settle() == []


def test_the_width_of_a_topic_and_the_last_time_of_a_level_go_on_with_every_commit() -> None:
    rig, retry = Rig(), Rig(retry=True)
    level = Partition("billing-RETRY-10s", 0)
    rig.assign(ORDERS, resume=Progress(5, width=3, last_at_ms=9))
    rig.take_offsets([5])
    rig.answer()
    rig.settle()
    retry.assign(level, resume=Progress(5, last_at_ms=9))
    retry.take(record(5, source=level, timestamp=0, life=life()))
    retry.answer()
    retry.settle()
    assert rig.kafka == {ORDERS: Progress(6, width=3)}  # only a level has such a time
    assert retry.kafka == {level: Progress(6, last_at_ms=9)}


def test_a_delivery_counts_under_the_name_of_its_level() -> None:
    rig = Rig(retry=True)
    for place, topic in enumerate(("billing-RETRY", "billing-RETRY-1s", "billing-RETRY-10s")):
        rig.assign(Partition(topic, 0))
        rig.take(record(source=Partition(topic, 0), timestamp=0, life=life()))
        assert len(rig.history) == place + 1
    rig.answer_all()
    assert set(rig.lane.counters.deliveries) == {("orders", name, "commit") for name in ("ready", "1s", "10s")}


# --- a log that loses records --------------------------------------------------------------------------------------


def test_a_log_that_is_cut_counts_what_was_not_read_and_keeps_what_was() -> None:
    rig = begun(0, 1)
    rig.lane.ownership.cut(ORDERS, 1, 2, 7)
    assert rig.lane.ownership.records_lost == {"orders": 5}
    rig.answer_all()
    rig.settle()
    assert rig.kafka[ORDERS] == Progress(7)


def test_the_cut_of_an_idle_log_is_committed() -> None:
    rig = begun()
    rig.lane.ownership.cut(ORDERS, 1, 0, 7)
    rig.lane.ownership.cut(OTHER, 1, 0, 2)
    rig.lane.tick(rig.now)
    rig.settle()
    assert rig.kafka == {ORDERS: Progress(7), OTHER: Progress(2)}
    assert rig.lane.ownership.records_lost == {"orders": 9}


def test_a_cut_of_an_older_assignment_or_of_a_paused_partition_counts_nothing() -> None:
    rig, level = Rig(retry=True), Partition("billing-RETRY-1m", 0)
    rig.assign(level)
    rig.lane.ownership.cut(level, 2, 0, 7)
    rig.take(record(source=level, life=life(due_at=1 << 45)))
    assert rig.part(level).paused is not None
    rig.lane.ownership.cut(level, 1, 0, 7)
    rig.lane.ownership.cut(OTHER, 1, 0, 7)
    assert not rig.lane.ownership.records_lost


def test_a_log_that_becomes_shorter_loses_what_was_open_behind_its_end() -> None:
    rig = begun(*range(6))
    rig.answer(place=1)
    rig.lane.ownership.truncated(ORDERS, 2)
    rig.lane.ownership.truncated(Partition("orders", 9), 2)
    assert rig.lane.ownership.records_lost == {"orders": 4}
    assert list(rig.lane.ownership.partitions) == [OTHER]


def test_what_was_answered_and_not_committed_when_a_partition_went_is_counted() -> None:
    rig = begun(0, 1)
    rig.take_offsets([0], OTHER)
    rig.answer_all()
    rig.lane.ownership.lost([ORDERS])
    rig.lane.ownership.lost([OTHER])
    assert rig.lane.ownership.uncommitted_at_loss == 3


def test_what_kafka_refuses_is_shown_with_its_partition() -> None:
    rig = begun(0)
    rig.answer(BAD)
    rig.run(25)
    rig.conclude(refused=[(rig.batches[0].entries[0], "record")])
    assert [part.refused for part in rig.facts.partitions.values()] == [1, 0]
