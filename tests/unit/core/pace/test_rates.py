"""A rate is kept exactly, whatever it is and however it is looked at; the smaller one of the instance binds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.pace.rates import (
    BURST_MS,
    GRAIN_MS,
    RESERVED_MS,
    DeliveryLimits,
    LimitFacts,
    Owned,
    TopicTerms,
    share_of,
)
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from tests.sim.samples import record

RATES = st.builds(Rate, st.integers(1, 5_000), st.sampled_from([1_000, 60_000, 3_600_000, 7_000]))
TEN, THIRTY = Rate(10, 1_000), Rate(30, 1_000)
SLOW, LEVEL = "slow", Partition("billing-RETRY-1s", 0)


def at(ms: int) -> Now:
    return Now(ms, ms)


def burst(rate: Rate) -> int:
    return max(1, rate.count * BURST_MS // rate.per_ms)


@given(RATES, st.lists(st.integers(0, 3_000), min_size=1, max_size=30))
def test_never_more_go_than_the_rate_and_one_burst_and_none_is_lost_that_is_used_at_once(
    rate: Rate, steps: list[int]
) -> None:
    limits, now, gone = DeliveryLimits(rate), 0, 0
    for step in steps:
        now += step
        room = limits.room(at(now))
        limits.check()
        assert room <= burst(rate)
        limits.instance.sent(room, now)
        gone += room
    assert gone <= now * rate.count // rate.per_ms
    if max(steps) * rate.count < burst(rate) * rate.per_ms:
        assert gone == now * rate.count // rate.per_ms


@given(RATES, st.integers(0, 10_000))
def test_a_restart_gives_no_burst_and_idle_time_gives_one_of_a_second(rate: Rate, idle: int) -> None:
    limits = DeliveryLimits(rate, since_ms=50)
    assert limits.room(at(50)) == 0
    assert limits.room(at(50 + idle)) == min(burst(rate), idle * rate.count // rate.per_ms)
    assert limits.room(at(50)) == limits.room(at(50 + idle)), "time does not go back"


@given(RATES, st.integers(0, 3))
def test_at_the_time_of_the_next_look_one_more_may_go(rate: Rate, offered: int) -> None:
    def limits() -> DeliveryLimits:
        made = DeliveryLimits(rate, at_receive=True)
        made.instance.sent(offered, 0)
        return made

    one = limits()
    when = one.next_at(at(0), full=True)
    if offered >= burst(rate):
        assert when == RESERVED_MS
    else:
        assert when >= GRAIN_MS
        assert one.room(at(when)) > 0
        assert when == GRAIN_MS or limits().room(at(when - 1)) <= 0


def test_after_a_change_the_new_rate_holds_and_its_burst() -> None:
    limits = DeliveryLimits(Rate(1_000, 1_000))
    assert limits.room(at(1_000)) == 1_000
    limits.set_rates(TEN, None, at(1_000))
    assert limits.room(at(1_000)) == 10
    limits.instance.sent(10, 1_000)
    assert limits.room(at(1_500)) == 5
    limits.set_rates(Rate(100, 1_000), None, at(1_500))
    assert limits.room(at(1_600)) == 15
    limits.set_rates(None, None, at(2_000))
    assert (limits.room(at(2_000)), limits.next_at(at(2_000), full=True), limits.active) == (NEVER, NEVER, False)
    limits.set_rates(TEN, None, at(6_000))
    assert (limits.room(at(6_000)), limits.room(at(6_100))) == (0, 1)


@pytest.mark.parametrize(
    ("share", "per_second"),
    [
        (Owned(1, 1), 30),
        (Owned(2, 6), 10),
        (Owned(6, 6), 30),
        (Owned(0, 6), 5),  # its retries need not wait forever
        (Owned(0, 0), 30),  # before Kafka has told anything
        (Owned(3, 0), 30),  # nor more than all, where it was told too few
    ],
)
def test_the_part_of_the_groups_rate_is_in_proportion_to_the_main_partitions(share: Owned, per_second: float) -> None:
    assert share_of(THIRTY, share).per_second == per_second


@pytest.mark.parametrize(
    ("own", "group", "share", "setting", "per_second"),
    [
        (TEN, None, Owned(1, 1), "rate", 10),
        (None, THIRTY, Owned(1, 3), "group_rate", 10),
        (TEN, THIRTY, Owned(1, 1), "rate", 10),
        (TEN, THIRTY, Owned(1, 6), "group_rate", 5),
        (TEN, THIRTY, Owned(1, 3), "rate", 10),  # as much: its own is told
    ],
)
def test_the_smaller_of_the_two_rates_binds(
    own: Rate | None, group: Rate | None, share: Owned, setting: str, per_second: float
) -> None:
    limits = DeliveryLimits(own, group)
    limits.owned, limits.stale = lambda: share, True
    limits.room(at(0))
    limits.check()
    assert limits.facts(full=True) == [LimitFacts(setting, None, per_second, waits=True)]
    assert limits.of_group is (group is not None)


def test_what_the_instance_owns_is_asked_once_after_each_change_and_the_tokens_stay() -> None:
    asked = list[int]()
    limits = DeliveryLimits(None, THIRTY)

    def owned() -> Owned:
        asked.append(1)
        return Owned(1, 3)

    limits.owned = owned
    assert (limits.room(at(500)), asked) == (15, [])
    limits.stale = True
    assert (limits.room(at(500)), limits.room(at(500)), len(asked)) == (10, 10, 1), "a second of the new rate"
    limits.instance.sent(10, 500)
    assert (limits.room(at(500)), limits.next_at(at(500), full=True)) == (0, 600)
    limits.stale = True
    assert limits.room(at(560)) == 0
    assert limits.room(at(600)) == 1, "a look at the same rate takes no part of a token"


def test_in_pull_a_token_is_kept_for_each_offered_record_and_spent_when_it_is_received() -> None:
    limits, ten = DeliveryLimits(TEN, at_receive=True), [record(offset) for offset in range(10)]
    assert limits.room(at(1_000)) == 10
    limits.instance.sent(10, 1_000)
    assert limits.room(at(60_000)) == 0, "nobody has received: no burst gathers in addition to the offers"
    limits.received(ten[:4], at(60_000))
    assert limits.room(at(60_000)) == 0
    assert limits.room(at(60_100)) == 1
    limits.withdrawn(ten[4:6])
    assert limits.room(at(60_100)) == 3, "nobody has received these"


def test_a_rate_that_is_set_later_knows_what_is_offered() -> None:
    limits = DeliveryLimits(at_receive=True)
    assert limits.active
    limits.instance.sent(3, 0)
    limits.set_rates(TEN, None, at(0))
    assert limits.room(at(500)) == 2
    limits.received([record(offset) for offset in range(3)], at(500))
    assert limits.room(at(600)) == 3


def test_limits_are_asked_where_there_are_some_and_the_next_look_is_at_the_earliest_that_binds() -> None:
    limits = DeliveryLimits()
    assert not limits.active
    limits.set_rates(None, Rate(5, 1_000), at(1_000))
    assert limits.active
    assert (limits.next_at(at(1_000), full=True), limits.next_at(at(1_000), full=False)) == (1_200, NEVER)
    topics = DeliveryLimits(None, None, {SLOW: TopicTerms(concurrency=1, rate=TEN)})
    topics.set_rates(None, None, at(0))
    assert topics.active
    assert topics.facts(full=True) == [
        LimitFacts("rate", SLOW, 10.0, waits=False),
        LimitFacts("concurrency", SLOW, 1, waits=False),
    ]


def retry(topic: str) -> Record:
    return replace(record(source=LEVEL), retry_state=RetryState(f"{topic}:0:1", topic, 1))


@pytest.mark.parametrize(
    ("one", "key"),
    [
        (record(source=Partition(SLOW, 3)), Partition(SLOW, 3)),
        (record(source=Partition("fast", 3)), Partition("fast", 3)),
        (retry(SLOW), (LEVEL, SLOW)),
        (retry("fast"), LEVEL),
    ],
)
def test_a_retry_of_a_limited_topic_has_a_flow_of_its_own(one: Record, key: object) -> None:
    assert DeliveryLimits(terms={SLOW: TopicTerms(concurrency=1)}).key(one) == key


def test_what_a_service_has_received_counts_for_the_instance_and_for_its_topic() -> None:
    limits = DeliveryLimits(Rate(20, 1_000), None, {SLOW: TopicTerms(rate=TEN)}, 0, at_receive=True)
    limit, fast = limits.topics[SLOW], record(source=Partition("fast", 0))
    assert limits.room(at(500)) == 10
    limit.sent(3, 500)
    limits.instance.sent(5, 500)
    limits.withdrawn([fast, retry(SLOW)])
    limits.received([fast, retry(SLOW)], at(500))
    assert (limits.room(at(500)), limit.room(500)) == (7, 3)
    limits.received([retry(SLOW)], at(500))
    limits.check()
    assert (limits.room(at(500)), limit.room(500)) == (7, 3), "two received, one withdrawn: three of five are left"
