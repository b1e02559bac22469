"""What follows from the ends of leases: an expiry is a failure without a delay, a nack is counted in memory alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.decide import RetryInPlace, decide, nack_wait
from reconsume.sidecar.core.outcome import EXPIRED, NACKED
from reconsume.topics.transitions import DeadLetter, Retry
from tests.sim.samples import WALL, life, policy, record


def test_an_expired_lease_is_a_failure_that_is_due_at_once_on_the_ready_topic() -> None:
    decision = decide(record(), EXPIRED, policy(), WALL)
    assert isinstance(decision, Retry)
    assert (decision.level, decision.retry_state.times, decision.retry_state.due_at) == (None, 1, WALL)
    assert decision.retry_state.reason == "lease-expired"


def test_the_expiry_after_the_last_retry_goes_to_the_dlq() -> None:
    assert isinstance(decide(record(life=life(2)), EXPIRED, policy(retries=3), WALL), Retry)
    decision = decide(record(life=life(3)), EXPIRED, policy(retries=3), WALL)
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.reason, decision.deliveries) == (3, "lease-expired", 4)


def test_an_expiry_counts_on_from_the_nacks_before_it() -> None:
    decision = decide(replace(record(), again=2), EXPIRED, policy(), WALL)
    assert isinstance(decision, Retry)
    assert decision.retry_state.times == 3


def test_a_nack_writes_nothing_until_the_retries_are_used_up() -> None:
    assert isinstance(decide(record(), NACKED, policy(retries=2), WALL), RetryInPlace)
    assert isinstance(decide(replace(record(), again=1), NACKED, policy(retries=2), WALL), RetryInPlace)
    decision = decide(replace(record(life=life(1)), again=1), NACKED, policy(retries=2), WALL)
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.reason, decision.retry_state.reason) == (2, "nacked", "nacked")


@pytest.mark.parametrize(("now", "wait"), [(0, 60_000), (1, 79_999), (19_999, 60_001), (20_000, 60_000)])
def test_a_nacked_record_comes_back_at_the_next_look(now: int, wait: int) -> None:
    assert nack_wait(60_000, now) == wait


@given(st.integers(1, 10**9), st.integers(0, 2**45))
def test_a_nacked_record_never_comes_early_nor_more_than_a_third_late(delay: int, now: int) -> None:
    assert delay <= nack_wait(delay, now) < delay + max(1, delay // 3)
