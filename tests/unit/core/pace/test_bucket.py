"""A rate is kept exactly, whatever it is and however it is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.pace.bucket import BURST_MS, GRAIN_MS, RESERVED_MS, Bucket
from reconsume.sidecar.core.pace.instance_rate import InstanceRate, Owned, share_of
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.rates import Rate

RATES = st.builds(Rate, st.integers(1, 5_000), st.sampled_from([1_000, 60_000, 3_600_000, 7_000]))


@given(RATES, st.lists(st.integers(0, 3_000), min_size=1, max_size=30))
def test_never_more_go_than_the_rate_and_one_burst_and_none_is_lost_that_is_used_at_once(
    rate: Rate, steps: list[int]
) -> None:
    bucket, now, gone = Bucket(rate, 0), 0, 0
    for step in steps:
        now += step
        tokens = bucket.tokens(now)
        bucket.check()
        assert tokens <= bucket.burst
        bucket.take(tokens)
        gone += tokens
    assert gone <= now * rate.count // rate.per_ms
    if max(steps) * rate.count < bucket.burst * rate.per_ms:
        assert gone == now * rate.count // rate.per_ms


@given(RATES, st.integers(0, 10_000))
def test_a_restart_gives_no_burst_and_idle_time_gives_one_of_a_second(rate: Rate, idle: int) -> None:
    bucket = Bucket(rate, 50)
    assert bucket.tokens(50) == 0
    assert bucket.tokens(50 + idle) == min(bucket.burst, idle * rate.count // rate.per_ms)
    assert bucket.burst == max(1, rate.count * BURST_MS // rate.per_ms)


@given(RATES, st.integers(0, 3))
def test_at_the_time_of_the_next_look_there_is_one_more_token(rate: Rate, reserved: int) -> None:
    bucket = Bucket(rate, 0)
    at = bucket.next_at(reserved, 0)
    if reserved >= bucket.burst:
        assert at == RESERVED_MS
    else:
        assert at >= GRAIN_MS
        assert bucket.tokens(at) > reserved
        assert at == GRAIN_MS or Bucket(rate, 0).tokens(at - 1) <= reserved


def test_after_a_change_the_new_rate_holds_and_its_burst() -> None:
    bucket = Bucket(Rate(1_000, 1_000), 0)
    assert bucket.tokens(1_000) == 1_000
    bucket.change(Rate(10, 1_000), 1_000)
    assert bucket.tokens(1_000) == 10
    bucket.take(10)
    assert bucket.tokens(1_500) == 5
    bucket.change(Rate(100, 1_000), 1_500)
    assert bucket.tokens(1_600) == 15


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (Owned(12, 12), 100.0),
        (Owned(3, 12), 25.0),
        (Owned(0, 12), 100 / 12),  # retries of a group with more instances than partitions
        (Owned(4, 0), 100.0),  # Kafka has told nothing yet
        (Owned(0, 0), 100.0),
    ],
)
def test_the_part_of_the_group_is_that_of_its_partitions(share: Owned, expected: float) -> None:
    assert share_of(Rate(100, 1_000), share).per_second == pytest.approx(expected)


def test_the_smaller_rate_binds_and_another_share_holds_from_the_next_look() -> None:
    rate = InstanceRate(Rate(50, 1_000), Rate(100, 1_000), 0)
    assert rate.setting == "rate"
    rate.owned = lambda: Owned(1, 4)
    rate.stale = True
    assert rate.room(1_000) == 25
    assert rate.setting == "group_rate"
    rate.set(None, None, 1_000)
    assert (rate.room(1_000), rate.next_at(1_000), rate.setting) == (NEVER, NEVER, "")
    rate.check()


def test_in_pull_a_token_is_kept_for_each_offered_record_and_spent_when_it_is_received() -> None:
    offered = 0
    rate = InstanceRate(Rate(10, 1_000), None, 0, at_receive=True)
    rate.offered = lambda: offered
    assert rate.room(1_000) == 10
    rate.sent(10)
    offered = 10
    assert rate.room(60_000) == 0, "nobody has received: no burst gathers beside the offers"
    rate.received(4, 60_000)
    offered = 6
    assert rate.room(60_000) == 0
    assert rate.room(60_100) == 1
