"""`dev up --speed`: waits are divided, and everything else of a retry stays as in production (contract 12.15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.decide import NackWait, Postpone, RetryInPlace, decide
from reconsume.sidecar.core.outcome import NACKED, Expired, Failed, Postponed, Throttled
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.expiry import Expiry
from reconsume.topics.levels import LONGEST
from reconsume.topics.transitions import DeadLetter, Hop, Retry, Wait, after_failure, after_wait
from tests.sim.samples import WALL, life, policy, record
from tests.support.sidecar.settings import good

REAL = policy()
FAST = replace(REAL, speed=1_000)


@pytest.mark.parametrize("failure", [Failed("no"), Failed("no", delay=90_000), Failed("no", level=5)])
@pytest.mark.parametrize("times", [0, 4, 15])
def test_a_retry_is_due_a_thousandth_of_the_time_later_in_the_topic_of_production(failure: Failed, times: int) -> None:
    one = after_failure(record(life=life(times) if times else None), failure, REAL, WALL)
    two = after_failure(record(life=life(times) if times else None), failure, FAST, WALL)
    assert isinstance(one, Retry)
    assert isinstance(two, Retry)
    assert two.level == one.level
    assert (two.retry_state.due_at - WALL) * 1_000 == one.retry_state.due_at - WALL
    assert replace(two.retry_state, due_at=0) == replace(one.retry_state, due_at=0)


def test_a_ladder_of_hours_takes_seconds() -> None:
    assert sum(map(REAL.ladder.delay, range(1, 17))) == 17_140_000
    assert sum(FAST.sped_up(REAL.ladder.delay(retry)) for retry in range(1, 17)) == 17_140


@given(st.integers(1, LONGEST), st.integers(1, 100_000))
def test_a_wait_is_never_nothing(wait: int, speed: int) -> None:
    assert 0 < replace(REAL, speed=speed).sped_up(wait) <= wait


def test_what_is_left_of_a_wait_hops_as_in_production() -> None:
    for left in (7_200_000, 400_000, 30_000):
        one = after_wait(record(life=life(due_at=WALL + left)), REAL, WALL)
        two = after_wait(record(life=life(due_at=WALL + left // 1_000)), FAST, WALL)
        assert isinstance(one, Hop)
        assert isinstance(two, Hop)
        assert two.level == one.level


def test_what_the_service_asks_for_is_divided_but_for_a_429() -> None:
    assert decide(record(), Postponed(5_000), FAST, WALL) == Postpone(5)
    far = decide(record(), Postponed(60_000), FAST, WALL)
    assert isinstance(far, Hop)
    assert (far.level, far.retry_state.due_at) == (60_000, WALL + 60)
    assert decide(record(), Throttled(5_000), FAST, WALL) == Wait(5_000)
    in_place = replace(FAST, in_place=InPlace(1_000), delays=())
    assert decide(record(), Failed("no", delay=20_000), in_place, WALL) == RetryInPlace(20)
    assert decide(record(), Failed("no"), in_place, WALL) == RetryInPlace(1_000), "an interval stays"


def test_the_rest_of_a_lease_keeps_its_length() -> None:
    released = decide(record(), Expired("released", 5_000), FAST, WALL)
    assert isinstance(released, Retry)
    assert released.retry_state.due_at == WALL + 5_000


def test_an_age_is_divided_too(tmp_path: Path) -> None:
    """Given an age or an expiry of 15 s and a ladder that begins with 10 s, then the second retry comes too late."""
    aged = build_policy(good(tmp_path, "retry.max_age=15s"), "pod", 1_000)
    for rules, failure in ((aged, Failed("no")), (FAST, Failed("no", expires=Expiry(after=15_000)))):
        assert isinstance(after_failure(record(timestamp=WALL), failure, rules, WALL), Retry)
        second = record(life=life(1, timestamp=WALL - 10))
        assert isinstance(after_failure(second, failure, rules, WALL), DeadLetter)
    named = replace(FAST, nack_delay_ms=build_policy(good(tmp_path), "pod", 1_000).nack_delay_ms)
    nacked = decide(record(), NACKED, named, WALL)
    assert isinstance(nacked, NackWait)
    assert nacked.ms <= 80, "60 s, and a third of it"
