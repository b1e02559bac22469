"""The record that crashes its service is found, because suspects go one at a time (contract 1.10)."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Nacked, NotSent, Outcome, Throttled
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.policy import HUNG_MS
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.transitions import DeadLetter
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record
from tests.sim.suspect_rigs import (
    BAD,
    OTHER,
    READY,
    WINDOW,
    commit,
    died,
    one_by_one,
    progress_of,
    rig_of,
    taken_up,
    work,
)


@pytest.mark.parametrize("found", [Progress(0, ours=False), Progress(0, clean=True)], ids=["no owner", "a clean one"])
def test_nothing_is_delivered_before_kafka_knows_that_something_is(found: Progress) -> None:
    """Else a death before the first commit would leave no trace, as often as it happens."""
    rig = taken_up(found, 0, 1, 2)
    assert rig.out_offsets() == []
    assert progress_of(commit(rig)) == Progress(0)
    assert rig.out_offsets() == [0, 1, 2]
    assert rig.part().suspicion is None


def test_a_partition_that_was_not_delivered_from_stays_clean() -> None:
    rig = rig_of()
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take(record(0, fault="bad-header: x"))
    (batch, *_) = rig.settle()
    assert progress_of(batch) == Progress(1, clean=True)


def test_an_opening_commit_that_fails_is_tried_again() -> None:
    rig = taken_up(Progress(0, clean=True), 0)
    rig.run(2)
    rig.conclude(again=[])
    assert rig.out_offsets() == []
    commit(rig)
    assert rig.out_offsets() == [0]


def test_after_one_death_records_go_out_as_ever_and_the_count_is_carried() -> None:
    """One node that is lost must not cost minutes."""
    rig = taken_up(died(1), *range(6))
    assert rig.wait().reason == "suspect"
    assert progress_of(commit(rig)) == Progress(0, deaths=1, reach=3)
    assert rig.out_offsets() == [0, 1, 2, 3]
    assert rig.wait().reason == "pace"


def test_the_count_ends_when_the_owner_has_lived_and_all_suspects_are_answered() -> None:
    rig = taken_up(died(1), *range(WINDOW + 5))
    work(rig, 9_000)
    assert rig.kafka[ORDERS] == Progress(WINDOW + 5, deaths=1, reach=WINDOW + 4)
    work(rig, 2_500)
    assert rig.kafka[ORDERS] == Progress(WINDOW + 5)
    assert rig.part().suspicion is None


def test_what_an_ended_suspicion_committed_lets_nothing_go() -> None:
    """Kafka must forget the reach first: a successor would not suspect what lies behind it."""
    rig = taken_up(died(1), 0)
    work(rig, 8_500)
    rig.take_offsets([1])
    commit(rig)
    rig.answer()
    rig.run(2_500)  # a commit is under way when the suspicion ends
    assert progress_of(rig.batches[0]).reach is not None
    rig.take_offsets([2])
    rig.conclude()
    assert rig.out_offsets() == []
    assert progress_of(commit(rig)).reach is None
    assert rig.out_offsets() == [2]


def test_while_a_suspect_is_out_the_count_stays() -> None:
    rig = taken_up(died(1), *range(WINDOW + 5))
    commit(rig)
    stuck = rig.sent.pop(0)
    work(rig, HUNG_MS - 2_000)
    assert rig.kafka[ORDERS] == Progress(0, frozenset(range(1, WINDOW + 5)), deaths=1, reach=WINDOW + 4)
    stuck.reply(stuck.record, COMMITTED, rig.now)
    work(rig, 2_500)
    assert rig.kafka[ORDERS] == Progress(WINDOW + 5)


def test_after_a_death_few_records_of_a_partition_are_out_at_once() -> None:
    """For those that are out at the next death go one at a time later on."""
    rig = taken_up(died(1), *range(200), concurrency=WINDOW)
    for _ in range(20):
        if rig.batches:
            rig.conclude()
        rig.run(50)
    assert rig.out_offsets() == [0, 1, 2, 3]


def test_under_suspicion_kafka_knows_of_all_but_a_window_of_records() -> None:
    """The successor of the next owner that dies must find the culprit among its first."""
    rig = taken_up(died(1), *range(200), concurrency=WINDOW)
    commit(rig)
    rig.batches.clear()
    for _ in range(200):
        if rig.sent:
            rig.answer()
    assert len(rig.history) <= 2 * WINDOW


def test_a_partition_that_is_given_up_with_a_delivery_out_is_clean_and_keeps_its_count() -> None:
    """At the lock's time out the process lives: nobody has died."""
    rig = taken_up(died(1), 0, 1)
    commit(rig)
    given_up = rig.release(ORDERS)
    rig.run(1_100)
    assert progress_of(rig.conclude()) == Progress(0, clean=True, deaths=1, reach=1)
    assert not given_up  # it waits for the answers nevertheless


def test_a_count_that_a_living_owner_hands_over_is_neither_raised_nor_forgotten() -> None:
    rig = taken_up(Progress(0, clean=True, deaths=2), 0, 1)
    assert progress_of(commit(rig)) == Progress(0, deaths=2, mark=0)
    assert rig.told == []


def test_a_partition_that_comes_back_to_who_lost_it_has_seen_no_death() -> None:
    rig = taken_up(Progress(0, clean=True), 0)
    commit(rig)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2, resume=rig.kafka[ORDERS])
    assert rig.told == []
    assert rig.part().suspicion is not None
    assert rig.part().suspicion.deaths == 0


def test_a_partition_that_comes_back_after_another_owner_died_has_seen_a_death() -> None:
    rig = taken_up(Progress(0, clean=True), 0)
    commit(rig)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2, resume=Progress(1))
    assert rig.told == [("taken-up", ORDERS, 1, 1)]


def test_without_a_limit_of_deaths_nothing_is_looked_at() -> None:
    rig = Rig()
    rig.assign(ORDERS, resume=died(9, mark=0))
    rig.take_offsets([0, 1])
    assert rig.out_offsets() == [0, 1]
    assert rig.part().suspicion is None


# --- the record that kills its pod: it is found one at a time, and only after enough deaths --------------------------


def test_after_more_deaths_records_go_one_at_a_time_and_each_is_marked_before() -> None:
    rig = taken_up(died(2), 0, 1, 2)
    one_by_one(rig, range(3))
    assert progress_of(commit(rig)).mark is None
    assert rig.kafka[ORDERS].deaths == 2


@pytest.mark.parametrize(("deaths", "most", "alone"), [(1, 1, True), (1, 2, True), (1, 3, False), (2, 3, True)])
def test_one_at_a_time_begins_one_death_before_the_last(deaths: int, most: int, alone: bool) -> None:
    rig = taken_up(died(deaths), 0, 1, most=most)
    commit(rig)
    assert rig.out_offsets() == ([0] if alone else [0, 1])


def test_all_other_partitions_of_the_instance_wait_meanwhile() -> None:
    rig = taken_up(died(2), 0, 1)
    beside = rig_of(beside=rig)
    for lane, source in ((rig, OTHER), (beside, READY)):
        lane.assign(source, resume=Progress(0, clean=True))
        lane.take(*(record(offset, source=source, life=life()) for offset in range(3)))

    def pass_time(ms: int) -> None:
        for _ in range(ms // 250):
            rig.run(250)
            for lane in (rig, beside):
                while lane.batches:
                    lane.conclude()

    for offset in range(2):
        pass_time(1_000)
        assert (rig.out_offsets(), beside.out_offsets()) == ([offset], [])
        assert rig.answer().source == ORDERS
    pass_time(15_000)  # more than the quiet time
    assert {sent.record.source for sent in rig.sent + beside.sent} == {OTHER, READY}
    assert rig.gate.in_flight == 4


def test_what_was_out_already_is_answered_before_the_first_suspect_goes() -> None:
    rig = rig_of()
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([0], OTHER)
    commit(rig)
    rig.assign(ORDERS, resume=died(2))
    rig.take_offsets([5])
    rig.run(500)
    assert rig.out_offsets() == [0]
    rig.answer()
    rig.settle()
    assert rig.out_offsets() == [5]


def test_the_record_that_was_out_alone_at_the_last_death_allowed_goes_to_the_dlq_undelivered() -> None:
    rig = taken_up(died(3, mark=1), 0, 1, 2)
    told = rig.told
    one_by_one(rig, range(1))
    (entry,) = [entry for batch in rig.settle() for entry in batch.entries]
    assert isinstance(entry.decision, DeadLetter)
    assert (entry.record.offset, entry.decision.reason, entry.decision.retry_state.times) == (1, "crashed-service", 0)
    assert told == [("taken-up", ORDERS, 3, 0), ("crashing-record", ORDERS, 3, 1)]
    assert [sent.record.offset for sent in rig.history] == [0, 2]
    assert rig.lane.counters.dead_letters == {("orders", "crashed-service"): 1}


def test_a_culprit_is_remembered_until_it_is_read_however_late_that_is() -> None:
    """The backlog of other partitions may keep a partition's first records back for longer than the quiet time."""
    rig = taken_up(died(3, mark=1))
    rig.run(60_000)
    rig.take_offsets(range(3))
    work(rig, 5_000)
    assert sorted(sent.record.offset for sent in rig.history) == [0, 2]
    assert rig.lane.counters.dead_letters == {("orders", "crashed-service"): 1}


def test_time_clears_no_partition_whose_records_have_not_come_but_lets_the_others_go_on_meanwhile() -> None:
    """They wait behind those of other partitions that fill the memory, or for a leader (found by a story)."""
    rig = rig_of()
    rig.assign(ORDERS, resume=died(2))
    rig.take_offsets([5], ORDERS)
    rig.assign(OTHER, resume=died(2))
    one_by_one(rig, [5])
    work(rig, 60_000)
    assert rig.gate.single_file.sources == {}
    rig.take_offsets([0, 1], OTHER)
    rig.settle()
    assert rig.kafka[OTHER].mark == 0
    assert [(sent.record.source, sent.record.offset) for sent in rig.sent] == [(OTHER, 0)]


def test_time_clears_no_partition_whose_records_wait_for_the_suspects_of_another_one() -> None:
    rig = rig_of()

    def pass_time(ms: int) -> None:
        for _ in range(ms // 250):
            rig.run(250)
            while rig.batches:
                rig.conclude()

    for source in (ORDERS, OTHER):
        rig.assign(source, resume=died(2))
    pass_time(2_000)
    rig.take_offsets([0], OTHER)
    pass_time(1_500)  # the first partition had no record for so long that it stops holding up the rest
    rig.answer(Throttled(1_000))
    rig.take(record(0), record(1), end=2)
    pass_time(3_750)
    assert [(sent.record.source, sent.record.offset) for sent in rig.sent] == [(OTHER, 0)]
    rig.answer()
    pass_time(4_000)
    assert [(sent.record.source, sent.record.offset) for sent in rig.sent] == [(ORDERS, 0)]


def test_time_clears_no_partition_whose_next_records_it_had_no_room_for() -> None:
    """It has nothing in memory until they are fetched again (found by a story)."""
    rig = rig_of()
    rig.assign(ORDERS, resume=died(2))
    rig.part().offsets.bounds = Bounds(span=2, window=1, far_bytes=0)
    rig.take_offsets(range(4))
    one_by_one(rig, [0, 1])
    work(rig, 20_000)
    assert rig.fetches[-1] == ("resume", ORDERS, 2, 1)
    assert rig.part().throughput.load == 0
    rig.take_offsets([2, 3])
    one_by_one(rig, [2, 3])
    work(rig, 20_000)
    assert rig.part().suspicion is None


def test_time_clears_a_level_whose_next_record_is_not_due() -> None:
    """It was not with the service when that died, and may not be due for hours."""
    level, delay_ms = Partition("billing-RETRY-2h", 0), 7_200_000
    rig = rig_of(beside=rig_of())
    rig.assign(level, resume=died(2))
    rig.take(
        record(0, source=level, timestamp=WALL - delay_ms, life=life()),
        record(1, source=level, life=life(due_at=WALL + delay_ms)),
    )
    assert rig.part(level).paused is not None
    work(rig, 20_000)
    assert [sent.record.offset for sent in rig.history] == [0]
    assert rig.part(level).suspicion is None


def test_a_culprit_that_is_not_read_for_a_long_time_is_quarantined_although_others_were_answered() -> None:
    rig = taken_up(died(3, mark=3), 0)
    one_by_one(rig, [0], Nacked())  # for a minute
    rig.whole = False
    rig.part().throughput.load = 0  # as when it was let go, and is read again later
    work(rig, 40_000)
    rig.take_offsets([3])
    work(rig, 5_000)
    assert rig.lane.counters.dead_letters == {("orders", "crashed-service"): 1}


def test_a_partition_whose_log_has_ended_is_cleared_by_time_and_a_later_record_goes_as_usual() -> None:
    rig = taken_up(died(2))
    rig.lane.received([FetchedRecords(ORDERS, 1, 0, [], end=0)], rig.now)
    work(rig, 20_000)
    rig.take_offsets(range(4))
    rig.settle()
    assert (rig.out_offsets(), rig.kafka[ORDERS].deaths) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize(("answer", "comes_after"), [(Throttled(1_000), 2_000), (Nacked(), 81_000)])
def test_a_suspect_that_comes_again_goes_alone_again_until_it_has_done_so_thrice(
    answer: Outcome, comes_after: int
) -> None:
    rig = taken_up(died(2), 0, 1)
    one_by_one(rig, [0], answer)
    one_by_one(rig, [1])
    for mark in (0, 0, None):
        rig.settle()
        rig.run(comes_after)
        rig.settle()
        assert rig.out_offsets() == [0]
        assert rig.kafka[ORDERS].mark == mark
        rig.answer(answer)


def test_while_a_suspect_waits_to_come_again_the_other_partitions_go_on_and_then_it_goes_alone() -> None:
    rig = taken_up(died(2), 0)
    rig.assign(OTHER, resume=Progress(0, clean=True))
    one_by_one(rig, [0], Nacked())  # for a minute
    rig.take_offsets(range(100), OTHER)
    work(rig, 10_000)
    assert {sent.record.source for sent in rig.history[1:]} == {OTHER}
    assert len(rig.history) == 101
    rig.take_offsets(range(100, 104), OTHER)
    rig.run(80_000)
    assert {sent.record.source for sent in rig.sent} == {OTHER}
    rig.answer_all()
    rig.settle()
    assert [(sent.record.source, sent.record.offset) for sent in rig.sent] == [(ORDERS, 0)]
    assert rig.kafka[ORDERS].mark == 0


def test_a_quarantined_retry_keeps_the_count_that_it_had() -> None:
    main = rig_of()
    rig = rig_of(beside=main)
    rig.assign(READY, resume=died(3, mark=0))
    rig.take(record(0, source=READY, life=life(times=2)))
    (batch, *_) = rig.settle()
    decision = batch.entries[0].decision
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.retry_state.id) == (2, "orders:0:7")


@pytest.mark.parametrize(
    "found",
    [
        died(2, mark=1),  # one death is left
        Progress(0, clean=True, deaths=3, mark=1),  # its last owner lives
        died(3, mark=None),  # nothing was marked
        Progress(0, frozenset({1}), deaths=2, mark=1),  # it is done
        Progress(0, ours=False, deaths=2, mark=1),  # nobody of ours wrote that
    ],
)
def test_without_enough_evidence_nobody_is_quarantined(found: Progress) -> None:
    rig = taken_up(found, 0, 1, 2)
    for _ in range(20):
        rig.answer_all()
        rig.settle()
    assert not rig.lane.counters.dead_letters
    assert rig.kafka[ORDERS].next == 3


def test_an_owner_after_a_death_lets_nothing_go_that_its_successor_would_not_suspect() -> None:
    rig = taken_up(died(1), *range(3))
    commit(rig)
    rig.take_offsets(range(3, 6))
    rig.answer()
    assert rig.out_offsets() == [1, 2]
    for reach in (3, 4):
        assert progress_of(commit(rig)).reach == reach
        assert rig.out_offsets() == list(range(1, reach + 1))


def test_only_what_the_last_owner_let_go_goes_alone() -> None:
    rig = taken_up(Progress(0, deaths=1, reach=1), *range(6))
    one_by_one(rig, range(2))
    rig.settle()
    assert rig.out_offsets() == [2, 3, 4, 5]


def test_what_lies_behind_the_reach_does_not_go_alone() -> None:
    rig = taken_up(Progress(0, deaths=1, reach=0), 1, 2)  # the one suspect was compacted away
    rig.settle()
    assert rig.out_offsets() == [1, 2]


def test_nothing_goes_in_either_lane_before_a_revoked_mark_is_taken_away() -> None:
    """Its partition's successor must not blame it for a death by another record."""
    rig = taken_up(died(2), 0)
    beside = rig_of(beside=rig)
    beside.assign(READY, resume=died(2))
    rig.run(2)
    rig.release(ORDERS)
    beside.take(record(0, source=READY, life=life()))
    rig.conclude()  # the mark is in Kafka
    rig.run(2)
    assert not beside.batches
    assert progress_of(rig.conclude()) == Progress(0, clean=True, deaths=2)
    rig.run(2)
    assert beside.conclude().commits[READY].progress.mark == 0


def test_a_partition_lost_while_its_mark_is_on_its_way_keeps_nobody_waiting() -> None:
    rig = taken_up(died(2), 0)
    rig.assign(OTHER, resume=died(2))
    rig.take_offsets([7], OTHER)
    rig.run(2)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.conclude(fenced=[ORDERS])
    rig.settle()
    assert [(sent.record.source, sent.record.offset) for sent in rig.sent] == [(OTHER, 7)]


def test_a_partition_of_which_nothing_was_out_keeps_nobody_waiting() -> None:
    rig = taken_up(Progress(4, deaths=1, reach=3), 4, 5, 6)
    commit(rig)
    assert rig.out_offsets() == [4, 5, 6]


def test_a_partition_that_has_nothing_to_deliver_keeps_the_others_waiting_for_moments_only() -> None:
    rig = rig_of()
    rig.assign(OTHER, resume=died(2))
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take_offsets([0])
    work(rig, 2_500)
    assert not rig.history
    work(rig, 1_500)
    assert [sent.record.source for sent in rig.history] == [ORDERS]


def test_what_was_set_aside_of_an_earlier_assignment_keeps_nobody_waiting() -> None:
    """It is not sent any more, and waited as if it were: all other partitions stood still for ever."""
    rig = rig_of()
    rig.assign(ORDERS, resume=died(2))
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([0], OTHER)
    work(rig, 500)
    rig.lane.ownership.lose_partitions([OTHER])
    rig.assign(OTHER, epoch=2, resume=died(2))
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2, resume=Progress(0, clean=True))
    rig.take_offsets([0], epoch=2)
    work(rig, 5_000)
    assert [sent.record.source for sent in rig.history] == [ORDERS]


def test_a_suspect_that_comes_back_waits_for_those_that_were_not_tried_yet() -> None:
    rig = taken_up(Progress(0, deaths=1, reach=2), 0, 1, 2)
    commit(rig)
    rig.answer(Throttled(10))
    rig.run(20)
    one_by_one(rig, range(1, 3))
    rig.settle()
    assert rig.out_offsets() == [0]


@pytest.mark.parametrize("outcome", [NotSent("connection-refused"), CANCELLED])
def test_the_mark_of_a_record_that_was_not_sent_is_taken_away_at_once(outcome: Outcome) -> None:
    """Its pod may well be killed while its service cannot be reached."""
    rig = taken_up(died(2), 0)
    commit(rig)
    rig.answer(outcome)
    assert progress_of(commit(rig)).mark is None


def test_a_probe_of_a_service_that_is_away_is_marked_too() -> None:
    rig = taken_up(died(2), 0, 1)
    commit(rig)
    rig.answer(NotSent("connection-refused"))
    commit(rig)
    rig.run(200)
    assert rig.gate.pace.state is State.PROBING
    one_by_one(rig, range(2))


def test_a_failure_clears_a_record_as_well_as_a_success() -> None:
    rig = taken_up(died(2), 0, 1)
    one_by_one(rig, range(2), BAD)


def test_a_partition_that_is_stopped_keeps_no_other_waiting() -> None:
    rig = taken_up(died(2), 0, 1)
    commit(rig)
    rig.answer(BAD)
    rig.run(30)
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([0], OTHER)
    for _ in range(50):
        while rig.batches:
            rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries] or ())
        rig.run(30)
    assert [sent.record.source for sent in rig.sent] == [OTHER]
    while rig.batches:  # the topic is mended
        rig.conclude()
    rig.settle()
    assert rig.fetches[-1] == ("resume", ORDERS, 1, 1)
    rig.take_offsets([1])
    rig.settle()
    assert rig.kafka[ORDERS].mark is None  # and the suspect waits until it is alone
    rig.answer()
    rig.settle()
    assert (rig.kafka[ORDERS].mark, rig.out_offsets()) == (1, [1])


def test_a_partition_that_is_stopped_while_its_marked_record_waits_for_the_service_keeps_no_other_waiting() -> None:
    """Given an outage when the mark is in Kafka, then the record waits at hand; it goes when its partition stops."""
    rig = taken_up(died(2), 0)
    rig.gate.pace.note(record(99), NotSent("connection-refused"), rig.now)
    commit(rig)
    assert (rig.kafka[ORDERS].mark, rig.sent) == (0, [])
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([7], OTHER)
    rig.take(record(1, fault="bad-header: x"))
    rig.run(30)
    for _ in range(40):
        while rig.batches:
            rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries] or ())
        rig.run(100)
    assert rig.part().blocked
    assert [sent.record.source for sent in rig.sent] == [OTHER]
    assert rig.kafka[ORDERS].mark is None


def test_a_mark_that_is_on_its_way_when_the_partition_is_revoked_is_taken_away() -> None:
    rig = taken_up(died(2), 0)
    rig.run(2)
    given_up = rig.release(ORDERS)
    rig.conclude()
    batch = rig.conclude()
    assert progress_of(batch) == Progress(0, clean=True, deaths=2)
    assert given_up
    assert not rig.history
    assert (rig.gate.single_file.sources, rig.gate.single_file.marking) == ({}, None)
