"""A job follows its group's policy, whatever is in the topic, and whether or not it can be read. Without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace
from pyspark.sql import DataFrame

from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.state import ControlRecord, ControlState, control_record
from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.following import AFTER_FAILURE, EVERY, LONGEST_LINE, PolicyFollower
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.agreement import SettingsRecord, digest_of, render_settings, settings_key
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import KEY, PolicyRecord, SubscriptionRecord, instance_key, render_record

RULES = build_rules("billing", ["orders"], ladder=["1s", "1m"], max_reconsume_times=2, name="ship")
NEWER = b'{"v": 2, "policy": {}, "who": "x", "at": 1}'


def policy(**values: Any) -> bytes:
    return render_record(PolicyRecord(values, "ops", 1))


class Topic(ControlLog):
    """A control log whose records, failures and level topics the test decides."""

    def __init__(self) -> None:
        self.new: list[ControlRecord] = []
        self.error: Exception | None = None
        self.topics = set(RULES.levels)
        self.reads = 0
        self.now = 100.0
        self.slept: list[float] = []
        clocks: dict[str, Any] = {"clock": lambda: self.now, "wall": lambda: self.now, "sleep": self._sleep}
        self.cluster: Any = self
        self._follower = PolicyFollower(RULES, log=self, **clocks)

    def is_there(self) -> bool:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return True

    def read_on(self, state: ControlState, within: float = 0, end: int | None = None) -> None:
        for record in self.new:
            state.apply(record, int(self.now * 1000))
        self.new.clear()

    def visible(self, topics: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(self.topics.intersection(topics))

    def instance(self, name: str, rank: int, **values: Any) -> None:
        """Have a sidecar say its settings; they are also those of the job where no value is given."""
        settings = SettingsRecord({**RULES.own, **values}, rank)
        digest = digest_of(settings.values)
        self.say(settings_key(digest), render_settings(settings))
        self.say(instance_key(name), render_record(SubscriptionRecord({}, 0, settings=digest)))

    def hold(self, ident: str, seconds: int, **what: Any) -> None:
        """Have an operator hold something."""
        begin = int(self.now * 1000)
        self.say(hold_key(ident), render_hold(HoldRecord(begin, begin + seconds * 1000, "why", "ann", **what)))

    def say(self, key: bytes, value: bytes | None) -> None:
        self.new.append(control_record(key, value, 0, int(self.now * 1000)))

    def rules(self, *policies: bytes | None) -> Rules:
        """Write policies, and return the rules of a batch that begins after the next read."""
        for value in policies:
            self.say(KEY, value)
        self.now += AFTER_FAILURE if self.error else EVERY
        return self.at_once()

    def at_once(self, size: int = 0) -> Rules:
        """Return the rules of a batch of so many records."""
        return self._follower.rules(cast(DataFrame, SimpleNamespace(count=lambda: size)))

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings since it was called last."""

    def taken() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        caplog.clear()
        return lines

    return taken


def test_without_a_policy_the_jobs_own_values_apply(topic: Topic, warnings: Callable[[], list[str]]) -> None:
    assert topic.rules() is RULES
    assert warnings() == []


def test_a_change_is_in_force_at_the_next_read(topic: Topic) -> None:
    assert topic.rules(policy(max_reconsume_times=5)).max_reconsume_times == 5
    topic.say(KEY, policy(jitter="9%", max_age="1h"))
    assert topic.at_once().jitter == 0, "it was read a moment ago"
    changed = topic.rules()
    assert (changed.max_reconsume_times, changed.jitter, changed.max_age) == (2, 9, 3_600_000)
    assert topic.rules(None) == RULES, "a policy that was withdrawn"


def test_a_policy_waits_for_its_level_topics(topic: Topic, warnings: Callable[[], list[str]]) -> None:
    change = policy(ladder=["1s", "7s"], max_reconsume_times=9)
    assert topic.rules(change) is RULES
    assert topic.rules() is RULES
    [line] = warnings()
    assert "billing-RETRY-7s" in line
    topic.topics.add("billing-RETRY-7s")
    assert (topic.rules().delays, topic.rules().max_reconsume_times) == ((1_000, 7_000), 9)
    assert warnings() == []


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (policy(ladder="steps", max_reconsume_times=9), "steps"),
        (policy(max_reconsume_times="9"), "max_reconsume_times"),
        (policy(ladder=[f"{'9' * 300}s"]), "must be a duration"),
        (NEWER, "newer version"),
    ],
    ids=["no ladder", "no number", "a long text", "unreadable"],
)
def test_a_policy_that_cannot_be_is_not_applied_and_the_next_one_is(
    topic: Topic, warnings: Callable[[], list[str]], record: bytes, sentence: str
) -> None:
    good = topic.rules(policy(max_reconsume_times=3))
    assert topic.rules(record) is good
    assert topic.rules() is good
    [line] = warnings()
    assert sentence in line
    assert len(line) < 500
    assert topic.rules(policy(max_reconsume_times=4)).max_reconsume_times == 4


def test_what_somebody_wrote_stays_one_short_line_of_the_log(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hostile = "x\n2026 ERROR \u202e" + "y" * 10_000
    by_hostile = render_record(PolicyRecord({"jitter": "9%"}, hostile[:256], 1))
    topic.rules(by_hostile, policy(jitter="8%"))
    topic.rules(by_hostile)
    topic.rules(policy(ladder={hostile: "1s"}))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(line.isprintable() and len(line) <= LONGEST_LINE for line in lines)


def test_a_job_that_starts_behind_an_unreadable_policy_has_the_one_before(
    topic: Topic, warnings: Callable[[], list[str]]
) -> None:
    assert topic.rules(policy(max_reconsume_times=3), NEWER).max_reconsume_times == 3
    assert topic.rules().max_reconsume_times == 3
    assert len(warnings()) == 1


def test_where_it_cannot_be_read_the_last_known_policy_applies_and_that_is_said_once(
    topic: Topic, warnings: Callable[[], list[str]]
) -> None:
    known = topic.rules(policy(max_reconsume_times=3))
    topic.error = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    assert [topic.rules(), topic.rules()] == [known, known]
    assert warnings() == [
        "the group's policy cannot be read, the last known one applies: no answer",
    ]
    topic.error = None
    reads = topic.reads
    assert topic.rules(policy(max_reconsume_times=4)) is known, "it is read again a minute later"
    assert topic.reads == reads
    topic.now += AFTER_FAILURE
    assert topic.at_once().max_reconsume_times == 4


def test_the_newest_settings_of_the_live_sidecars_apply_below_the_policy(topic: Topic) -> None:
    """Given two sidecars and a policy, then the newer sidecar's values apply, under the policy, while it lives."""
    topic.instance("pod-0", 1, max_reconsume_times=5)
    assert topic.rules().max_reconsume_times == 5
    topic.instance("pod-1", 2, max_reconsume_times=7, jitter="9%")
    assert (topic.rules().max_reconsume_times, topic.rules().jitter) == (7, 9)
    changed = topic.rules(policy(jitter="3%"))
    assert (changed.max_reconsume_times, changed.jitter) == (7, 3)
    topic.say(instance_key("pod-1"), None)
    assert (topic.rules().max_reconsume_times, topic.rules().jitter) == (5, 3)
    topic.now += 180
    assert topic.rules(None) == RULES, "no sidecar lives"


def test_settings_of_sidecars_that_cannot_be_are_skipped(topic: Topic, warnings: Callable[[], list[str]]) -> None:
    topic.instance("pod-0", 1, max_reconsume_times=5)
    topic.instance("pod-1", 2, ladder=["1s", "7s"])
    assert topic.rules().max_reconsume_times == 5
    [line] = warnings()
    assert "billing-RETRY-7s" in line
    topic.topics.add("billing-RETRY-7s")
    assert topic.rules().delays == (1_000, 7_000)
    topic.instance("pod-2", 3, ladder="steps")
    assert topic.rules().delays == (1_000, 7_000)


def test_a_group_that_keeps_an_order_is_said_and_not_followed(topic: Topic, warnings: Callable[[], list[str]]) -> None:
    assert topic.rules(policy(ordered_ladder=["10s"], max_reconsume_times=9)) is RULES
    [line] = warnings()
    assert "keeps the order" in line
    assert topic.rules(policy(ordered_ladder=None, max_reconsume_times=9)).max_reconsume_times == 9


# --- holds ------------------------------------------------------------------------------------------------------------


def test_a_hold_is_obeyed_from_the_next_read_until_its_end_or_its_release(topic: Topic) -> None:
    topic.hold("a", 60, topic="orders")
    topic.hold("b", 3_600, all=True)
    assert [hold.what for hold in topic.rules().holds] == ["topic=orders", "all"]
    assert topic.rules() is topic.at_once(), "the functions of the workers are made once"
    topic.now += 60
    [hold] = topic.at_once().holds
    assert hold.all, "the end of the other one needs no record"
    topic.say(hold_key("b"), render_hold(replace(hold, released_by="bob", released_at=1)))
    assert topic.rules() == RULES


def test_a_hold_that_cannot_end_in_time_is_not_obeyed_and_one_that_was_deleted_is_over(topic: Topic) -> None:
    topic.hold("a", 8 * 86_400, all=True)
    assert topic.rules().holds == ()
    topic.hold("b", 60, all=True)
    assert len(topic.rules().holds) == 1
    topic.say(hold_key("b"), None)
    assert topic.rules().holds == ()


def test_holds_go_on_while_the_topic_cannot_be_read(topic: Topic) -> None:
    topic.hold("a", 3_600, all=True)
    held = topic.rules(policy(max_reconsume_times=3)).holds
    assert held
    topic.error = OSError("no answer")
    assert topic.rules().holds == held


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_batch_begins_when_the_one_before_has_had_its_time_and_a_new_rate_counts_at_once(topic: Topic) -> None:
    """Given 10 records a second, then 300 records take 30 s, and less as soon as the policy allows more."""
    topic.rules(policy(rate="10/s"))
    topic.at_once(size=300)
    began = topic.now
    topic.at_once(size=300)
    assert topic.now == pytest.approx(began + 30)
    assert max(topic.slept) <= EVERY, "a change is noticed meanwhile"
    began = topic.now
    topic.say(KEY, policy(rate="100/s"))
    topic.at_once()
    assert began + 3 <= topic.now <= began + 3 + 2 * EVERY
    topic.rules(policy())
    topic.slept.clear()
    topic.at_once(size=300)
    topic.at_once(size=300)
    assert topic.slept == [], "without a rate nothing waits"
