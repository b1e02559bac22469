"""The schedule of a soak: a pure function of its seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.soak.run import FAULTS
from tests.soak.schedule import CALM, GAPS, KINDS, SPARED, WARM_UP, plan

HALF_AN_HOUR = 1800.0


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    assert plan(7, HALF_AN_HOUR) == plan(7, HALF_AN_HOUR)
    assert plan(7, HALF_AN_HOUR).steps != plan(8, HALF_AN_HOUR).steps


def test_every_kind_of_fault_is_known_to_whoever_carries_it_out() -> None:
    assert set(FAULTS) == set(KINDS)
    assert {kind.track for kind in KINDS.values()} == set(GAPS)


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_sees_every_kind_of_fault(seed: int) -> None:
    assert {step.kind for step in plan(seed, HALF_AN_HOUR).steps} == set(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_one_track_never_overlap_and_leave_the_start_and_the_end_alone(seed: int) -> None:
    schedule = plan(seed, 300)
    for track in GAPS:
        steps = schedule.of(track)
        assert all(before.at + before.lasts < after.at for before, after in pairwise(steps))
        assert all(WARM_UP <= step.at < 300 - CALM and step.at + step.lasts <= 300 for step in steps)


@pytest.mark.parametrize("seed", range(20))
def test_no_pod_ends_by_a_fault_in_the_last_third_and_all_else_goes_on(seed: int) -> None:
    last = [step for step in plan(seed, HALF_AN_HOUR).steps if step.at >= SPARED * HALF_AN_HOUR]
    assert not any(KINDS[step.kind].ends for step in last)
    assert {step.track for step in last} == set(GAPS)


def test_only_what_is_asked_for_is_scheduled() -> None:
    steps = plan(1, HALF_AN_HOUR, ["pod-kill", "node-kill"]).steps
    assert {step.kind for step in steps} == {"pod-kill", "node-kill"}
    with pytest.raises(ValueError, match="no such fault: pod-kil;"):
        plan(1, HALF_AN_HOUR, ["pod-kil"])


def test_a_busy_machine_may_have_fewer_faults_in_the_same_time() -> None:
    usual, apart = plan(7, HALF_AN_HOUR), plan(7, HALF_AN_HOUR, apart=3)
    assert len(apart.steps) < len(usual.steps) / 1.5
    assert {step.kind for step in apart.steps} == set(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_the_load_is_moderate_with_short_waves(seed: int) -> None:
    schedule = plan(seed, HALF_AN_HOUR)
    rates = [schedule.rate(second) for second in range(int(HALF_AN_HOUR))]
    assert min(rates) >= 50
    assert max(rates) <= 500
    assert sum(rate > 150 for rate in rates) < 0.15 * HALF_AN_HOUR
    assert 60 <= sum(rates) / HALF_AN_HOUR <= 150
