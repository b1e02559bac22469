"""Partitions whose last owner died: what is delivered before Kafka knows, what is counted, and until when."""

import pytest

from reconsume.sidecar.core.lane.suspicion import HUNG_MS
from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.progress import Progress
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record
from tests.sim.suspect_rigs import (
    WINDOW,
    commit,
    died,
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
    assert progress_of(commit(rig)) == Progress(0, deaths=1, reach=3)
    assert rig.out_offsets() == [0, 1, 2, 3]
    assert rig.state() == "suspect"


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
    rig.lane.ownership.lost([ORDERS])
    rig.assign(ORDERS, epoch=2, resume=rig.kafka[ORDERS])
    assert rig.told == []
    assert rig.part().suspicion is not None
    assert rig.part().suspicion.deaths == 0


def test_a_partition_that_comes_back_after_another_owner_died_has_seen_a_death() -> None:
    rig = taken_up(Progress(0, clean=True), 0)
    commit(rig)
    rig.lane.ownership.lost([ORDERS])
    rig.assign(ORDERS, epoch=2, resume=Progress(1))
    assert rig.told == [("taken-up", ORDERS, 1, 1)]


def test_without_a_limit_of_deaths_nothing_is_looked_at() -> None:
    rig = Rig()
    rig.assign(ORDERS, resume=died(9, mark=0))
    rig.take_offsets([0, 1])
    assert rig.out_offsets() == [0, 1]
    assert rig.part().suspicion is None
