"""What an instance notes of its last minutes: failures, new dead letters, and partitions that stand."""

from __future__ import annotations

import logging

import pytest

from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.core.undelivered import HOLD, RATE, Wait
from reconsume.sidecar.observability.signals import Signals

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
LEVEL = Partition("billing-RETRY-10s", 0)


class Instance:
    """Counters and ages of one instance, looked at every ten seconds from its start."""

    def __init__(self) -> None:
        self.lane, self.ages = LaneCounters(), {ONE: 0, TWO: 0, LEVEL: 0}
        self.is_away, self.retried = False, 0
        self.kept_by, self.first = "", 5
        away, retried = lambda: self.is_away, lambda: self.retried
        self.signals = Signals([self.lane], self.waits, ["orders"], away, retried)
        self.steady_ms = self.signals._snapshots[0].at_ms

    def waits(self) -> dict[Partition, Wait]:
        return {source: Wait(age, self.kept_by, self.first, is_sent=False) for source, age in self.ages.items()}

    def wait(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.steady_ms += 10_000
            self.signals.look(Now(self.steady_ms, self.steady_ms))

    def attempts(self, outcome: str, count: int) -> None:
        self.lane.deliveries["orders", "main", outcome] += count
        if outcome == "retry":
            self.lane.failures["orders", "http-500"] += count


def test_failures_of_the_last_five_minutes_are_told_and_older_ones_are_not() -> None:
    pod = Instance()
    pod.attempts("commit", 30)
    pod.attempts("retry", 10)
    pod.attempts("throttled", 99)
    pod.wait(10)
    (told,) = pod.signals.sums.failures
    assert (told.topic, told.attempts, told.failed, told.reasons) == ("orders", 40, 10, {"http-500": 10})
    assert (pod.signals.urgent, pod.signals.retried) == (True, 0)
    pod.retried = 1
    pod.wait(320)
    assert pod.signals.retried == 1
    assert pod.signals.sums.failures == []
    assert not pod.signals.urgent


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


@pytest.mark.parametrize(("kept_by", "says"), [(HOLD, "an operator holds"), (RATE, "waits for a rate")])
def test_a_stall_that_a_hold_or_a_rate_ends_is_not_called_a_delivery_and_is_logged_again_after_it(
    kept_by: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    pod = Instance()
    for age in (90_000, 0, 0, 90_000):
        pod.ages[ONE], pod.kept_by = age, "" if age else kept_by
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
