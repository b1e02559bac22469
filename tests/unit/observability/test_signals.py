"""What an instance notes of its last minutes: failures, new dead letters, and partitions that stand."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.observability.signals import BlockedKeys, Signals
from reconsume.topics.in_place_told import LARGEST, MOST, InPlaceTold, bounded

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
LEVEL = Partition("billing-RETRY-10s", 0)


class Instance:
    """Counters and ages of one instance, looked at every ten seconds from its start."""

    def __init__(self) -> None:
        self.lane, self.ages = LaneCounters(), {ONE: 0, TWO: 0, LEVEL: 0}
        self.is_away, self.retried = False, 0
        self.heads: list[InPlaceTold] = []
        self.queued = 0
        self.reason, self.first = NotDelivered.PACE, 5
        away, retried = lambda: self.is_away, lambda: self.retried
        self.signals = Signals(
            [self.lane],
            self.waits,
            ["orders"],
            away,
            retried,
            lambda: BlockedKeys(len(self.heads) + self.queued, self.heads),
        )
        self.steady_ms = self.signals._snapshots[0].at_ms

    def blocked(self) -> BlockedKeys:
        return BlockedKeys(len(self.heads) + self.queued, self.heads)

    def waits(self) -> dict[Partition, Wait]:
        return {source: Wait(age, self.reason, None, self.first, is_sent=False) for source, age in self.ages.items()}

    def wait(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.steady_ms += 10_000
            self.signals.look_at_lanes(Now(self.steady_ms, self.steady_ms))

    def attempts(self, outcome: str, count: int) -> None:
        self.lane.deliveries["orders", "main", outcome] += count
        if outcome == "retry":
            self.lane.failures.by_cause["orders", "http-500"] += count


def test_failures_of_the_last_five_minutes_are_told_and_older_ones_are_not() -> None:
    pod = Instance()
    pod.attempts("commit", 30)
    pod.attempts("retry", 10)
    pod.attempts("throttled", 99)
    pod.wait(10)
    (told,) = pod.signals.sums.failures
    assert (told.topic, told.attempts, told.failed, told.reasons) == ("orders", 40, 10, {"http-500": 10})
    assert pod.signals.news().fails
    pod.wait(320)
    assert pod.signals.sums.failures == []
    assert not pod.signals.news().fails


def test_dead_letters_of_the_last_quarter_of_an_hour_are_told_by_reason() -> None:
    pod = Instance()
    pod.lane.dead_letters["orders", "http-422"] += 3
    pod.wait(800)
    assert [(one.topic, one.reasons) for one in pod.signals.sums.dead_letters] == [("orders", {"http-422": 3})]
    pod.wait(200)
    assert pod.signals.sums.dead_letters == []


def test_the_lag_names_the_oldest_partition_of_each_main_topic_and_says_whether_it_grows() -> None:
    pod = Instance()
    for second in range(0, 100, 10):
        pod.ages[ONE] = second * 1000
        pod.wait(10)
    (lag,) = pod.signals.sums.lag
    assert (lag.topic, lag.partition, lag.oldest, lag.next, lag.grows) == ("orders", 0, 90_000, 0, True)
    assert lag.why == "pace"
    pod.wait(100)
    assert not pod.signals.sums.lag[0].grows


def test_a_partition_that_stands_is_logged_once_and_once_when_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reconsume.signals")
    pod = Instance()
    for age in (50_000, 60_000, 70_000, 90_000, 0, 0):
        pod.ages[ONE], pod.first = age, 5 if age else 6
        pod.wait(10)
    told = [(record.levelname, vars(record)["partition"], vars(record)["undelivered_for"]) for record in caplog.records]
    assert told == [("WARNING", "orders[0]", 60), ("WARNING", "orders[0]", 0)]
    assert caplog.records[-1].getMessage() == "orders[0]: it is delivered again"


@pytest.mark.parametrize(
    ("kept_by", "says"),
    [
        (NotDelivered.HELD, "an operator holds"),
        (NotDelivered.RATE, "the rate of the instance"),
        (NotDelivered.TOPIC_RATE, "the rate of its topic"),
    ],
)
def test_a_stall_that_a_hold_or_a_rate_ends_is_not_called_a_delivery_and_is_logged_again_after_it(
    kept_by: NotDelivered, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    pod = Instance()
    for age in (90_000, 0, 0, 90_000):
        pod.ages[ONE], pod.reason = age, NotDelivered.PACE if age else kept_by
        pod.wait(10)
    lines = [record.getMessage() for record in caplog.records]
    assert [says in line for line in lines] == [False, True, False], lines
    assert not any("delivered again" in line for line in lines)


def test_without_a_delivery_a_lower_age_alone_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pod = Instance()
    for pod.ages[ONE], pod.first in ((90_000, 5), (0, 5), (0, 6)):
        before = len(caplog.records)
        pod.wait(10)
    assert (before, [vars(record).get("now") for record in caplog.records]) == (1, ["stalled", "delivered"])


def test_an_outage_explains_what_stands_and_a_partition_that_stands_after_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reconsume.signals")
    pod = Instance()
    pod.is_away, pod.ages[ONE] = True, 90_000
    pod.wait(100)
    pod.is_away = False
    pod.wait(50)
    assert not caplog.records
    assert pod.signals.sums.lag[0].oldest == 90_000, "the sums stay as they are"
    pod.wait(20)
    assert [vars(record)["partition"] for record in caplog.records] == ["orders[0]"]


def test_a_partition_that_another_instance_has_now_is_not_said_to_be_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reconsume.signals")
    pod = Instance()
    pod.ages[ONE] = 400_000
    pod.wait(10)
    del pod.ages[ONE]
    pod.wait(10)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_heartbeats_sums_are_of_its_own_moment_and_not_of_the_last_look() -> None:
    """Given 32 failures since the last look, when the heartbeat of the outage is made, then it has them all."""
    pod = Instance()

    async def beat() -> None:
        following = asyncio.create_task(pod.signals.follow())
        await asyncio.sleep(0)
        pod.attempts("retry", 32)
        pod.retried, pod.heads = 1, [failing(0)]
        await asyncio.wait_for(asyncio.to_thread(pod.signals.refresh), 10)
        following.cancel()

    asyncio.run(beat())
    assert [(one.attempts, one.failed) for one in pod.signals.sums.failures] == [(32, 32)]
    assert (pod.signals.retried(), [one.id for one in pod.signals.in_place]) == (1, ["orders:0:0"])


def failing(number: int, since: int = 0, topic: str = "orders") -> InPlaceTold:
    return InPlaceTold(f"{topic}:{number}:{number}", 7, 1_000, since, "http-500")


def test_news_are_made_by_ages_and_numbers_that_double_or_halve_and_by_the_records_that_are_named() -> None:
    pod = Instance()
    changes, before = list[bool](), pod.signals.news()
    for age, retried, heads in [
        (59_000, 0, []),  # not a minute
        (60_000, 0, []),
        (110_000, 0, []),
        (120_000, 0, []),
        (0, 0, []),
        (0, 2, []),
        (0, 3, []),
        (0, 4, []),
        (0, 0, []),
        (0, 0, [failing(0)]),
    ]:
        pod.ages[ONE], pod.retried, pod.heads = age, retried, heads
        pod.wait(10)
        after = pod.signals.news()
        changes.append(after != before)
        before = after
    assert changes == [False, True, False, True, True, True, False, True, True, True]


def test_of_the_records_that_are_retried_in_place_a_heartbeat_names_those_that_fail_longest() -> None:
    many = [failing(number, since=1_000 - number) for number in range(100)]
    assert [one.id for one in bounded(many)] == [f"orders:{number}:{number}" for number in range(99, 99 - MOST, -1)]
    assert len(bounded(many)) == MOST
    long = [failing(number, topic="t" * 249) for number in range(9)]
    assert 1 <= len(bounded(long)) < MOST
    assert len(msgspec.json.encode(bounded(long))) <= LARGEST
    assert len(bounded([msgspec.structs.replace(failing(0), id="t" * 300, reason="r" * 64)])) == 1


def test_blocked_keys_are_logged_once_a_minute_with_the_five_oldest_and_once_when_they_are_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pod = Instance()
    pod.heads, pod.queued = [failing(number, since=1_000 - number) for number in range(7)], 2
    pod.wait(120)
    pod.heads, pod.queued = [], 0
    pod.wait(70)
    lines = [vars(line) for line in caplog.records if vars(line).get("event") == "keys-blocked"]
    oldest = [f"orders:{number}:{number}" for number in (6, 5, 4, 3, 2)]
    assert [(line["keys"], line.get("oldest")) for line in lines] == [(9, oldest), (9, oldest), (0, [])]
    assert not pod.signals.blocks
