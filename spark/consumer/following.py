"""Follow the group's policy: the rules in force, by the policy topic's newest record over the job's own values.

The policy is read on the driver before a batch, at most every EVERY seconds. It is applied as a whole or not at all, as
by a sidecar (contract 10.2). Nothing in the topic, and no broker that does not answer, stops a batch: it goes on by the
rules that are in force, and the log says why, once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from pyspark.sql import SparkSession

from reconsume.spark.consumer.policy_topic import EARLIEST, PolicyNews, is_absent, missing, read_policy
from reconsume.spark.consumer.policy_values import KEYS
from reconsume.spark.consumer.rules import Rules, with_policy
from reconsume.topics.policy_record import PolicyHeard, PolicyRecord

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
    ) -> None:
        """Begin with the job's own rules.

        `kafka` holds settings of Kafka's Java client, as text by name. `read` and `are_missing` replace the reads by
        Spark's Kafka source, and `clock` tells the seconds.
        """
        self._rules = rules
        self._read = read or (lambda session, topic, begin: read_policy(session, kafka, topic, begin))
        self._are_missing = are_missing or (lambda session, topics: missing(session, kafka, topics))
        self._clock = clock
        self._next_read = clock()
        self._offset = EARLIEST
        self._pending: PolicyHeard | None = None
        """The newest policy that can be read, until it is in force."""
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
            self._pending = news.policy or self._pending
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
            self._offset = EARLIEST
            return self._read(session, topic, EARLIEST)

    def _apply(self, are_missing: Callable[[Collection[str]], bool]) -> str:
        """Apply the newest policy, or return the reason against it; empty if it is in force."""
        if self._pending is not None:
            if against := self._against(self._pending.record, are_missing):
                return against
            self._pending = None
        return self._fault

    def _against(self, record: PolicyRecord | None, are_missing: Callable[[Collection[str]], bool]) -> str:
        try:
            rules = with_policy(self._rules, {} if record is None else record.policy)
        except ValueError as fault:
            return str(fault)
        added = rules.levels.keys() - self._rules.levels.keys()
        if added and are_missing(added):
            return f"level topics are missing, of {', '.join(sorted(added))}; `reconsume topics apply` creates them"
        if rules != self._rules:
            who = "no record" if record is None else record.who
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


def line_of(text: str) -> str:
    """Return a text as one line for the log, whatever somebody has put into it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_LINE])


def changes(old: Rules, new: Rules) -> list[str]:
    """Return the keys of the policy whose values have another meaning now."""
    fields = {"levels": ("table", "delays"), "rules": ("retry_rules",)}
    return [key for key in KEYS if any(getattr(old, name) != getattr(new, name) for name in fields.get(key, (key,)))]
