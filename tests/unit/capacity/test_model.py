"""The capacity model against sums that can be done by hand, and its bounds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.capacity import constants as figures
from reconsume.sidecar.capacity.limits import lateness, limits, outage
from reconsume.sidecar.capacity.model import (
    Load,
    crash,
    events,
    flow,
    instance,
    lane_transactions,
    storage,
    transactions,
    waiting,
)
from reconsume.topics.levels import Ladder
from reconsume.topics.names import Kind

LOAD = Load(rate=1_000, fails=0.01, fails_again=0.5)


def test_each_retry_gets_what_failed_before_it() -> None:
    found = flow(LOAD)
    assert found.retries[:3] == (10.0, 5.0, 2.5)
    assert found.dead == pytest.approx(10 * 0.5**16)
    assert found.retried == pytest.approx(20, rel=1e-3)


def test_what_waits_is_what_comes_times_what_it_waits() -> None:
    assert {delay: waiting(LOAD)[delay] for delay in (10_000, 30_000, 60_000)} == {
        10_000: 100,
        30_000: 150,
        60_000: 150,
    }


def test_retries_past_the_end_of_the_ladder_share_its_last_level() -> None:
    found = waiting(replace(LOAD, ladder=Ladder((1_000, 2_000)), retries=4, delays=(1_000, 2_000)))
    assert found == {1_000: 10, 2_000: 2 * (5 + 2.5 + 1.25)}


def test_without_failures_nothing_waits_and_one_transaction_a_second_carries_the_progress() -> None:
    idle = replace(LOAD, fails=0.0)
    assert set(waiting(idle).values()) == {0.0}
    assert transactions(idle) == 1.0
    assert events(idle) == 0.0


def test_failures_that_come_together_share_a_transaction() -> None:
    assert lane_transactions(10, 10) == pytest.approx(9.65, rel=0.01)
    assert lane_transactions(1e5, 1e5) == 1e5 / figures.GROUP_RECORDS
    assert lane_transactions(3_000, 3_000) < 36


def test_the_load_of_one_instance_is_its_share_of_the_groups() -> None:
    one, two = instance(LOAD), instance(replace(LOAD, instances=2))
    assert two.pushes == one.pushes / 2
    assert two.in_flight == one.in_flight / 2
    assert one.in_flight == pytest.approx(one.pushes * 0.05)


def test_a_record_costs_less_cpu_the_more_there_are() -> None:
    slow, fast = instance(replace(LOAD, rate=10.0, fails=0.0)), instance(replace(LOAD, rate=30_000.0, fails=0.0))
    assert slow.cores / 10 > 10 * fast.cores / 30_000
    assert fast.cores == pytest.approx(30_000 * figures.PUSHED_CPU, rel=0.2)


def test_a_crash_repeats_at_most_what_was_out_and_what_came_since_the_last_commit() -> None:
    found = crash(replace(LOAD, fails=0.0))
    assert found.usual == pytest.approx(50 + 500)
    assert found.most == pytest.approx(50 + 1_008)
    assert crash(LOAD).most < found.most


def test_topics_are_those_that_topics_plan_makes() -> None:
    found = storage(LOAD)
    assert {kind: stored.topics for kind, stored in found.items()} == {
        Kind.LEVEL: 16,
        Kind.DLQ: 1,
        Kind.READY: 1,
        Kind.EVENTS: 1,
        Kind.POLICY: 1,
    }
    assert storage(replace(LOAD, spark=True)).keys() - found.keys() == {Kind.VIEW, Kind.STATS}
    assert found[Kind.LEVEL].replicas == 16 * 12 * 3


def test_an_event_topic_holds_its_retention_of_events() -> None:
    stored = storage(LOAD)[Kind.EVENTS]
    assert stored.size == pytest.approx(events(LOAD) * figures.EVENT_BYTES * 3 * 7 * 86_400)


def test_an_outage_is_caught_up_at_full_speed_or_never() -> None:
    found = outage(replace(LOAD, outage=600.0))
    assert found.backlog == 600_000
    assert found.seconds is not None
    assert 100 < found.seconds < 300
    assert outage(replace(LOAD, outage=600.0, concurrency=40)).seconds is None


def test_the_fullest_limit_comes_first_and_lateness_is_not_promised_beyond_it() -> None:
    crowded = replace(LOAD, concurrency=40)
    assert limits(crowded)[0].used > 1
    assert next(limit for limit in limits(crowded) if limit.what == "requests in flight").used > 1
    assert lateness(crowded) is None
    sparks = {limit.what for limit in limits(replace(LOAD, spark=True))} - {limit.what for limit in limits(LOAD)}
    assert sparks == {"one Spark core"}
    assert lateness(LOAD) == {"p50": figures.LATE_P50, "p99": figures.LATE_P99}


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 0.0}, {"rate": float("nan")}, {"fails": 1.1}, {"fails_again": -0.1}, {"instances": 0}, {"attempt": -1.0}],
)
def test_a_load_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is"):
        Load(**{"rate": 1.0, "fails": 0.1, **wrong})  # type: ignore[arg-type]
