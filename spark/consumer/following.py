"""Follow the group: the rules in force, by its policy and its live sidecars, over the job's own values.

The policy topic is read on the driver before a batch, at most every EVERY seconds. What it says is applied as a whole
or not at all, as by a sidecar (contract 10.2, 10.7): the newest settings among the live sidecars, in which no job has a
part, and over them the policy. Without a live sidecar the job's own values apply below the policy. Nothing in the
topic, and no broker that does not answer, stops a batch: it goes on by the rules that are in force, and the log says
why, once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from pyspark.sql import SparkSession

from reconsume.spark.consumer.policy_topic import EARLIEST, MOST_KEYS, PolicyNews, Said, is_absent, missing, read_policy
from reconsume.spark.consumer.policy_values import KEYS, Values
from reconsume.spark.consumer.rules import Rules, with_policy
from reconsume.topics.agreement import (
    MOST_DIGESTS,
    SILENT_AFTER,
    LiveSettings,
    SettingsHeard,
    SettingsRecord,
    newest_first,
)
from reconsume.topics.policy_record import InstanceHeard, PolicyRecord

EVERY = 5.0
"""Seconds between two reads. One takes a tenth of a second, and a batch may come each second."""
AFTER_FAILURE = 60.0
"""Seconds after a read that failed: it may have taken as long as brokers are given, and fills Spark's own log."""
LONGEST_LINE = 500
"""Characters of a line of the log. What is quoted in it comes from whoever may write to the topic."""

_LOG = logging.getLogger("reconsume.spark")

ReadPolicy: TypeAlias = Callable[[SparkSession, str, int], PolicyNews]
"""A function that returns the news of a topic from an offset on. It raises if it cannot be read."""
Missing: TypeAlias = Callable[[SparkSession, Collection[str]], bool]
"""A function that says whether one of these topics does not exist."""


class PolicyFollower:
    """The rules in force in one job. It lives on the driver, and one query uses it."""

    def __init__(
        self,
        rules: Rules,
        kafka: Mapping[str, str],
        *,
        read: ReadPolicy | None = None,
        are_missing: Missing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin with the job's own rules.

        `kafka` holds settings of Kafka's Java client, as text by name. `read` and `are_missing` replace the reads by
        Spark's Kafka source, and `clock` and `wall` tell the seconds, the second since 1970.
        """
        self._rules = rules
        self._read = read or (lambda session, topic, begin: read_policy(session, kafka, topic, begin))
        self._are_missing = are_missing or (lambda session, topics: missing(session, kafka, topics))
        self._clock, self._wall = clock, wall
        self._next_read = clock()
        self._offset = EARLIEST
        self._newest: PolicyRecord | None = None
        """The newest policy that can be read."""
        self._policy: PolicyRecord | None = None
        """The policy in force."""
        self._instances = SidecarSettings()
        self._fault = ""
        """Why a newer one cannot be read."""
        self._said = ""

    def rules(self, session: SparkSession) -> Rules:
        """Return the rules for the next batch. Never raises."""
        if self._clock() >= self._next_read:
            self._next_read = self._clock() + (EVERY if self._follow(session) else AFTER_FAILURE)
        return self._rules

    def _follow(self, session: SparkSession) -> bool:
        """Read what is new and apply it. Whether it could be read."""
        try:
            news = self._news(session)
            self._offset = news.next_offset
            self._newest = self._newest if news.policy is None else news.policy.record
            self._instances.take(news.said)
            self._fault = news.fault or ("" if news.policy else self._fault)
            against = self._apply(partial(self._are_missing, session))
        except Exception as error:  # noqa: BLE001 - whatever the client raises, a batch must not wait for the policy
            self._warn(f"the group's policy cannot be read, the last known one applies: {self._cause(error)}")
            return False
        self._warn(f"the group's policy is not applied, the one before it stays in force: {against}" if against else "")
        return True

    def _news(self, session: SparkSession) -> PolicyNews:
        """Read on, or from the first record if that fails: a topic that was made anew may be shorter."""
        topic = self._rules.names.policy
        try:
            return self._read(session, topic, self._offset)
        except Exception:
            if self._offset == EARLIEST:
                raise
            self._offset, self._instances = EARLIEST, SidecarSettings()
            return self._read(session, topic, EARLIEST)

    def _apply(self, are_missing: Callable[[Collection[str]], bool]) -> str:
        """Apply the newest settings and policy that can be, or return the reason against others; empty if all are."""
        against = ""
        live = self._instances.live(self._wall() * 1000)
        for values in (*(one.record.values for one in live), {}):
            for policy in (self._newest, self._policy):
                fault = self._against(values, policy, are_missing)
                if not fault:
                    self._policy = policy
                    return against or self._fault
                against = against or fault
        return against

    def _against(
        self, values: Values, record: PolicyRecord | None, are_missing: Callable[[Collection[str]], bool]
    ) -> str:
        try:
            rules = with_policy(self._rules, {**values, **({} if record is None else record.policy)})
        except ValueError as fault:
            return str(fault)
        added = rules.levels.keys() - self._rules.levels.keys()
        if added and are_missing(added):
            return f"level topics are missing, of {', '.join(sorted(added))}; `reconsume topics apply` creates them"
        if rules != self._rules:
            who = "no record" if record is None else record.who
            who = f"{who}, over the settings of sidecars" if values else who
            changed = ", ".join(changes(self._rules, rules))
            _LOG.info("%s", line_of(f"the group's policy changed, by {who}: {changed}"))
            self._rules = rules
        return ""

    def _cause(self, error: Exception) -> str:
        if is_absent(error):
            return f"{self._rules.names.policy} does not exist"
        lines = [line.strip(": ") for line in str(error).splitlines() if line.strip(": ")]
        # The first line of an error from Java says only which call failed.
        return next((line for line in lines if not line.startswith("An error occurred")), type(error).__name__)

    def _warn(self, text: str) -> None:
        """Log what is wrong, once until it changes."""
        if text and text != self._said:
            _LOG.warning("%s", line_of(text))
        self._said = text


class SidecarSettings:
    """The settings of the group's sidecars, by what they have said in the policy topic."""

    def __init__(self) -> None:
        self._records: dict[str, SettingsRecord] = {}
        self._named: dict[str, tuple[str, int]] = {}
        """The digest that each sidecar names, and when it did (epoch ms)."""

    def take(self, news: Iterable[Said]) -> None:
        """Take in what was said last, in the order of the log. Above a bound, the oldest are dropped."""
        for content, at in news:
            match content:
                case SettingsHeard(digest=digest, record=SettingsRecord() as settings):
                    self._records[digest] = settings
                case SettingsHeard(digest=digest):
                    self._records.pop(digest, None)
                case InstanceHeard(instance=name, record=beat):
                    self._named.pop(name, None)
                    if beat is not None:
                        self._named[name] = beat.settings, at
        while len(self._records) > MOST_DIGESTS:
            del self._records[min(self._records, key=lambda digest: (self._records[digest].rank, digest))]
        while len(self._named) > MOST_KEYS:
            del self._named[next(iter(self._named))]

    def live(self, now_ms: float) -> tuple[LiveSettings, ...]:
        """Return the settings of the sidecars that run at this time, the newest first."""
        named = {name: digest for name, (digest, at) in self._named.items() if at > now_ms - SILENT_AFTER}
        return newest_first(self._records, named)


def line_of(text: str) -> str:
    """Return a text as one line for the log, whatever somebody has put into it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_LINE])


def changes(old: Rules, new: Rules) -> list[str]:
    """Return the keys of the policy whose values have another meaning now."""
    fields = {"levels": ("table", "delays"), "rules": ("retry_rules",)}
    return [key for key in KEYS if any(getattr(old, name) != getattr(new, name) for name in fields.get(key, (key,)))]
