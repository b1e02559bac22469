"""A lane gets partitions and gives them up: what was counted is not counted twice, and nothing is left (9.1, 7.4)."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import LeaveUncommitted, NackWait, decide_draining
from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outbox import PROGRESS_EVERY_MS, UNANSWERED_MS
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    EXPIRED,
    NACKED,
    Failed,
    NotSent,
    Outcome,
    Rejected,
    Throttled,
)
from reconsume.sidecar.core.partition import SETTLED
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.transitions import Commit, DeadLetter, Retry
from tests.sim.ladder_rig import LadderRig, rules, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record
from tests.sim.samples import life as a_life

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
    assert ORDERS not in rig.lane.partitions
    assert rig.lane.room.taken == 0


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
    assert ORDERS in rig.lane.partitions
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
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.answer_all(BAD)
    rig.conclude(fenced=[ORDERS])  # what was under way came too late
    rig.run(10_000)
    assert not rig.batches
    assert not rig.kafka
    assert rig.lane.counters.fenced_answers == 1  # the third was sent before the loss
    assert rig.lane.room.taken == 0


def test_a_loss_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    rig.lane.ownership.lose_partitions([ORDERS])
    assert given_up


def test_an_assignment_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    assert not given_up
    rig.assign(ORDERS, epoch=2)
    assert given_up


def test_a_late_answer_of_an_older_assignment_is_counted_and_dropped() -> None:
    rig = begun(0, 1)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    late = rig.sent.pop(0)
    late.reply(late.record, COMMITTED, rig.now)
    assert rig.lane.counters.fenced_answers == 1
    assert rig.part().offsets.snapshot() == Progress(0)


def test_records_of_an_older_assignment_are_dropped() -> None:
    rig = begun()
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets([0, 1], epoch=1)
    assert not rig.sent


def test_a_batch_of_an_older_assignment_settles_nothing_in_the_new_one() -> None:
    rig = begun(0)
    rig.answer(BAD)
    rig.run(25)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    rig.conclude()
    assert (rig.part().offsets.counts[SETTLED], rig.part().offsets.snapshot()) == (0, Progress(0))
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
    assert list(rig.lane.partitions) == [OTHER]
    (batch,) = rig.settle()[:1]
    assert [entry.record.source for entry in batch.entries] == [OTHER]
    assert rig.part(OTHER).offsets.snapshot() == Progress(1)
    assert rig.lane.room.taken == 0


def test_deliveries_are_withdrawn_at_a_revocation_and_again_when_the_partition_is_gone() -> None:
    rig = begun(0)
    rig.recalls.clear()
    rig.release(ORDERS)
    assert rig.recalls == [({ORDERS}, False)]  # what the service has may still be answered
    rig.answer()
    rig.conclude()
    assert rig.recalls[1:] == [({ORDERS}, True)]
    rig.lane.ownership.lose_partitions([OTHER])
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
    rig.lane.ownership.truncate(ORDERS, 2)
    rig.lane.ownership.truncate(Partition("orders", 9), 2)
    assert rig.lane.ownership.records_lost == {"orders": 4}
    assert list(rig.lane.partitions) == [OTHER]


def test_what_was_answered_and_not_committed_when_a_partition_went_is_counted() -> None:
    rig = begun(0, 1)
    rig.take_offsets([0], OTHER)
    rig.answer_all()
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.lane.ownership.lose_partitions([OTHER])
    assert rig.lane.ownership.uncommitted_at_loss == 3


def test_what_kafka_refuses_is_shown_with_its_partition() -> None:
    rig = begun(0)
    rig.answer(BAD)
    rig.run(25)
    rig.conclude(refused=[(rig.batches[0].entries[0], "record")])
    assert [part.counts.refused for part in rig.facts.partitions.values()] == [1, 0]


# --- A drain: what a service does in its last seconds costs no record an attempt, and what Kafka has not -------------


LOST = Failed("connection-lost", "", "broken_answer")
LAST = policy(retries=0)


def drained(outcome: Outcome, *, closed: bool = True) -> Rig:
    """One record is out when the sidecar begins to drain, and ends so."""
    rig = Rig(policy=LAST)
    rig.assign(ORDERS)
    rig.take_offsets([0])
    if closed:
        rig.gate.close()
    rig.release(ORDERS)
    rig.answer(outcome)
    rig.settle()
    return rig


@pytest.mark.parametrize("outcome", [LOST, BAD])
def test_no_record_is_dead_lettered_for_a_service_that_goes_during_a_drain(outcome: Outcome) -> None:
    assert drained(outcome).kafka[ORDERS] == Progress(0, clean=True)
    assert drained(outcome, closed=False).kafka[ORDERS] == Progress(1, clean=True)


def test_a_record_that_the_service_itself_sends_to_the_dlq_goes_there_during_a_drain() -> None:
    assert drained(Rejected("bad-sku")).kafka[ORDERS] == Progress(1, clean=True)


@pytest.mark.parametrize(
    ("outcome", "made"),
    [
        (COMMITTED, Commit),
        (BAD, Retry),
        (LOST, LeaveUncommitted),
        (Failed("timeout", "", "timeout"), Retry),
        (EXPIRED, Retry),
        (NACKED, NackWait),
        (Failed("retry-asked", level=-1), DeadLetter),
        (Rejected("bad-sku"), DeadLetter),
    ],
)
def test_only_a_connection_that_is_lost_means_something_else_while_retries_are_left(
    outcome: Outcome, made: type
) -> None:
    assert isinstance(decide_draining(record(0), outcome, policy(), WALL), made)


@pytest.mark.parametrize("outcome", [BAD, Failed("timeout", "", "timeout"), EXPIRED])
def test_no_failure_is_the_last_one_during_a_drain(outcome: Outcome) -> None:
    assert isinstance(decide_draining(record(0), outcome, LAST, WALL), LeaveUncommitted)
    ordered = replace(policy(), in_place=InPlace(max_times=0))
    assert isinstance(decide_draining(record(0), BAD, ordered, WALL), LeaveUncommitted)


def test_a_retry_that_is_cut_off_keeps_its_count() -> None:
    again = record(0, life=a_life(times=3))
    assert isinstance(decide_draining(again, LOST, policy(), WALL), LeaveUncommitted)


def test_what_was_answered_and_is_not_in_kafka_when_a_partition_goes_is_left_behind() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets(range(4))
    rig.answer()
    rig.answer(BAD)
    rig.run(25)
    assert rig.batches, "the copy is on its way"
    assert rig.part().unsaved == 2
    rig.lane.ownership.lose_partitions([ORDERS])
    assert rig.lane.ownership.uncommitted_at_loss == 2


def test_nothing_is_left_behind_by_a_partition_that_is_given_up_in_order() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets([0, 3, 4, 9])
    rig.release(ORDERS)
    rig.answer_all()
    rig.settle()
    assert ORDERS not in rig.lane.partitions
    assert rig.lane.ownership.uncommitted_at_loss == 0


# --- what is lost of a log, and what Kafka has not heard when a partition goes: each is counted, once ----------------


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
    assert rig.lane.partitions == {}
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


# --- what a call of a lane has led to is done by it, or by a call that it asks for: nothing else may -----------------


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


# --- A lane that keeps an order sends nothing while it may have lost its partitions without knowing it ---------------


def in_flight(order: Literal["key", "partition"] | None) -> Rig:
    """A lane of which one record is answered, and the transaction with its progress is in flight."""
    rig = Rig(order=order)
    rig.assign(ORDERS)
    rig.take(record(0, key=b"a"))
    rig.answer()
    rig.run(1_100)
    assert rig.lane.machines.commits.in_flight is not None
    return rig


def sent_of(rig: Rig) -> list[int]:
    return [delivery.record.offset for delivery in rig.sent]


@pytest.mark.parametrize("order", ["key", "partition", None])
def test_while_kafka_refuses_its_transaction_as_of_no_member_an_ordered_lane_sends_nothing(
    order: Literal["key", "partition"] | None,
) -> None:
    rig = in_flight(order)
    rig.lane.member_refused()
    rig.lane.member_refused()  # it is tried again and again
    rig.take(record(1, key=b"b"))
    rig.run(3_000)
    assert sent_of(rig) == ([] if order else [1])
    rig.conclude()
    rig.run(10)
    assert sent_of(rig) == [1]


@pytest.mark.parametrize("order", ["key", None])
def test_a_transaction_that_does_not_end_raises_the_doubt_after_the_session_timeout(
    order: Literal["key", "partition"] | None,
) -> None:
    rig = in_flight(order)
    rig.run(PROGRESS_EVERY_MS + UNANSWERED_MS - 1_100 - 2)
    rig.take(record(1, key=b"b"))
    assert sent_of(rig) == [1]
    rig.run(10)
    rig.take(record(2, key=b"c"))
    rig.run(60_000)
    assert sent_of(rig) == ([1] if order else [1, 2])
    rig.conclude()
    rig.run(10)
    assert sent_of(rig) == [1, 2]


def test_a_word_that_comes_after_the_result_is_about_nothing() -> None:
    rig = in_flight("key")
    rig.conclude()
    rig.lane.member_refused()
    rig.take(record(1, key=b"b"))
    assert sent_of(rig) == [1]
