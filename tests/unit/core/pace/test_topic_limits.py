"""The limits of one main topic: when it rests, what of it may go, and when to look at it again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.pace.limits import DeliveryLimits, LimitFacts
from reconsume.sidecar.core.pace.topic_limits import TopicLimit, TopicLimits, TopicTerms
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from tests.sim.samples import record

SLOW = "slow"
TEN = Rate(10, 1_000)
LEVEL = Partition("billing-RETRY-1s", 0)


def limits_of(terms: TopicTerms, *, at_receive: bool = False, waiting: int = 3) -> tuple[TopicLimits, TopicLimit]:
    """The limits of one topic, of which some records wait."""
    limits = TopicLimits({SLOW: terms}, 0, at_receive=at_receive)
    (limit,) = limits.all()
    wait(limits, SLOW, waiting)
    return limits, limit


def wait(limits: TopicLimits, topic: str, count: int = 1) -> None:
    """Let records of a topic wait in a lane of their own."""
    ready = ReadyFlows()
    ready.join(lambda record, now: True, 1, lambda: None, lambda: None, limits)
    ready.extend([record(offset, source=Partition(topic, 0)) for offset in range(count)])


def at(ms: int) -> Now:
    return Now(ms, ms)


@pytest.mark.parametrize(
    ("terms", "room", "reached"),
    [
        (TopicTerms(), NEVER, False),
        (TopicTerms(concurrency=2), 2, False),
        (TopicTerms(concurrency=1), 1, False),
        (TopicTerms(rate=TEN), 0, True),  # a start gives no burst
        (TopicTerms(concurrency=2, rate=TEN), 0, True),
    ],
)
def test_a_topic_begins_with_its_places_and_without_tokens(terms: TopicTerms, room: int, *, reached: bool) -> None:
    limits, limit = limits_of(terms)
    limits.check()
    assert (limit.room(), limit.reached) == (room, reached)


def test_the_last_of_its_places_lets_it_rest_and_a_look_after_an_answer_ends_that() -> None:
    limits, limit = limits_of(TopicTerms(concurrency=2))
    limit.sent(1)
    assert (limit.reached, limit.binds) == (False, "")
    limit.sent(1)
    limits.check()
    assert (limit.reached, limit.binds, limits.next_at()) == (True, "concurrency", NEVER)
    limits.look(100)
    assert limit.reached, "a look alone gives no place"
    limit.ended(1)
    assert limit.reached, "it has turns again at the next look"
    limits.look(100)
    limits.check()
    assert (limit.reached, limit.room()) == (False, 1)


def test_the_smaller_of_its_places_and_its_tokens_may_go_and_the_one_that_binds_is_told() -> None:
    limits, limit = limits_of(TopicTerms(concurrency=2, rate=TEN))
    assert (limit.binds, limits.next_at()) == ("rate", 100)
    limits.look(150)
    assert (limit.room(), limit.reached) == (1, False)
    limit.sent(1)
    assert (limit.room(), limit.binds, limits.next_at()) == (0, "rate", 200)
    limits.look(1_000)
    assert limit.room() == 1, "of ten tokens"
    limit.sent(1)
    assert (limit.binds, limits.next_at()) == ("concurrency", NEVER), "only an answer helps"


def test_nothing_binds_where_nothing_waits() -> None:
    limits, limit = limits_of(TopicTerms(rate=TEN), waiting=0)
    assert (limit.reached, limit.binds, limits.next_at()) == (True, "", NEVER)


def test_the_earliest_of_the_limits_that_are_reached_is_looked_at_next() -> None:
    limits = TopicLimits({"hourly": TopicTerms(rate=Rate(1, 3_600_000)), SLOW: TopicTerms(rate=TEN)}, 0)
    wait(limits, "hourly")
    wait(limits, SLOW)
    assert limits.next_at() == 100
    limits.look(100)
    assert limits.next_at() == 3_600_000
    limits.check()


def test_what_is_offered_keeps_its_token_until_it_is_received_or_withdrawn() -> None:
    limits, limit = limits_of(TopicTerms(rate=TEN), at_receive=True)
    limits.look(300)
    limit.sent(2)
    limits.check()
    assert limit.room() == 1
    limit.withdrawn()
    limit.ended(1)
    limits.check()
    assert limit.room() == 2, "nobody has received it"
    limit.received(300)
    limits.check()
    assert limit.room() == 2, "its token is taken, and kept no more"
    limits.look(400)
    assert limit.room() == 3
    limit.sent(3)
    assert (limit.reached, limits.next_at()) == (True, 500)


@pytest.mark.parametrize("at_receive", [False, True])
def test_a_topic_without_records_for_a_minute_has_a_second_of_its_rate(*, at_receive: bool) -> None:
    limits, limit = limits_of(TopicTerms(rate=TEN), at_receive=at_receive)
    limits.look(60_000)
    limit.sent(10)
    for _ in range(10 if at_receive else 0):
        limit.received(60_000)
    limits.look(60_100)
    assert limit.room() == 1


def retry(topic: str) -> Record:
    return replace(record(source=LEVEL), retry_state=RetryState(f"{topic}:0:1", topic, 1))


@pytest.mark.parametrize(
    ("one", "bound", "key"),
    [
        (record(source=Partition(SLOW, 3)), True, Partition(SLOW, 3)),
        (record(source=Partition("fast", 3)), False, Partition("fast", 3)),
        (retry(SLOW), True, (LEVEL, SLOW)),
        (retry("fast"), False, LEVEL),
    ],
)
def test_a_record_is_bound_by_the_topic_that_it_was_first_in(one: Record, key: object, *, bound: bool) -> None:
    limits, limit = limits_of(TopicTerms(concurrency=1))
    assert limits.of_record(one) is (limit if bound else None)
    assert limits.of(one.main_topic) is (limit if bound else None)
    assert limits.key(one) == key
    assert limits.key(one) in set(limits.keys(one.source)), "by which it is looked for when its partition goes"


def test_what_a_service_has_received_counts_for_the_instance_and_for_its_topic() -> None:
    limits = DeliveryLimits(Rate(20, 1_000), None, {SLOW: TopicTerms(rate=TEN)}, 0, at_receive=True)
    (limit,) = limits.topics.all() if limits.topics else ()
    assert limits.room(at(500)) == 10
    limit.sent(3)
    limits.withdrawn([record(source=Partition("fast", 0)), retry(SLOW)])
    limits.received([record(source=Partition("fast", 0)), retry(SLOW)], at(500))
    assert (limits.room(at(500)), limit.room()) == (8, 3)
    limits.received([retry(SLOW)], at(500))
    limits.check()
    assert (limits.room(at(500)), limit.room()) == (7, 3), "two received, one withdrawn: three of five tokens are left"
    without = DeliveryLimits()
    without.received([retry(SLOW)], at(0))
    without.withdrawn([retry(SLOW)])
    assert (without.room(at(0)), without.next_at(at(0), full=True)) == (NEVER, NEVER)


def test_limits_are_asked_where_there_are_some_and_the_next_look_is_at_the_earliest_that_binds() -> None:
    limits = DeliveryLimits()
    assert not limits.active
    limits.set_rates(None, Rate(5, 1_000), at(1_000))
    limits.check()
    assert limits.active
    assert (limits.next_at(at(1_000), full=True), limits.next_at(at(1_000), full=False)) == (1_200, NEVER)
    assert list(limits.facts(full=True)) == [LimitFacts("group_rate", None, 5.0, waits=True)]
    limits.set_rates(Rate(2, 1_000), None, at(1_000))
    assert list(limits.facts(full=False)) == [LimitFacts("rate", None, 2.0, waits=False)]
    limits.set_rates(None, None, at(1_000))
    limits.check()
    assert not limits.active
    assert DeliveryLimits(None, Rate(5, 1_000)).active
    topics = DeliveryLimits(None, None, {SLOW: TopicTerms(concurrency=1, rate=TEN)})
    topics.set_rates(None, None, at(0))
    topics.check()
    assert topics.active
    assert list(topics.facts(full=True)) == [
        LimitFacts("rate", SLOW, 10.0, waits=False),
        LimitFacts("concurrency", SLOW, 1, waits=False),
    ]
