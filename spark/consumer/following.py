"""Follow the group: the rules in force, by its policy, its live sidecars and its holds, over the job's own values.

The control log (partition 0 of the policy topic) is read on the driver before a batch, at most every EVERY seconds.
What it says of settings is applied as a whole or not at all, as by a sidecar (contract 10.2, 10.7): the newest settings
among the live sidecars, in which no job has a part, and over them the policy. Without a live sidecar the job's own
values apply below the policy. Holds apply one by one (contract 10.4). Nothing in the topic, and no broker that does not
answer, stops a batch: it goes on by the rules that are in force, and the log says why, once.

The log is read by librdkafka, from where the last read ended. `ControlState` folds it, as for a sidecar, and bounds all
that it keeps. What the log said stays in force if the topic is deleted or recreated: what an operator stopped must not
begin because a topic is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from msgspec.structs import replace
from pyspark.sql import DataFrame

from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.state import OF_INSTANCE, ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.spark.consumer.brokers import CLIENT
from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.configuration import KEYS, with_policy
from reconsume.spark.consumer.rules import Rules, Values
from reconsume.topics.policy_record import PolicyRecord
from reconsume.topics.rates import Rate

EVERY = 5.0
"""Seconds between two reads: a batch may come each second."""
AFTER_FAILURE = 60.0
"""Seconds after a read that failed: it may have taken as long as brokers are given."""
LONGEST_LINE = 500
"""Characters of a line of the log. What is quoted in it comes from whoever may write to the topic."""
_LOG = logging.getLogger("reconsume.spark")


class PolicyFollower:
    """The rules in force in one job. It lives on the driver, and one query uses it."""

    def __init__(
        self,
        rules: Rules,
        kafka: Mapping[str, str] | None = None,
        *,
        client: Mapping[str, str] | None = None,
        log: ControlLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin with the job's own rules.

        `kafka` holds settings of Kafka's Java client, as text by name. `client` holds those of librdkafka, by which the
        log is read; None: what follows from `kafka`. `log` replaces the brokers, `clock` and `wall` tell the seconds,
        the second since 1970, and `sleep` waits for seconds. Raises ValueError if neither names brokers, or `kafka`
        cannot be translated for librdkafka.
        """
        self._rules = rules
        self._client = native_client(kafka, client) if log is None else {}
        self._log = log
        """Made at first use: Spark Connect sends a follower to its server, and a Kafka client cannot be sent."""
        self._clock, self._wall = clock, wall
        self._pace = Pace(clock, sleep)
        self._next_read = clock()
        self._state = ControlState(OF_INSTANCE)
        self._policy: PolicyRecord | None = None
        """The policy in force."""
        self._warned = ""

    def rules(self, batch: DataFrame) -> Rules:
        """Return the rules for a batch, once their rate lets it begin. Whatever is in the topic, it raises nothing.

        With a rate, the rows of the batch are counted, which evaluates the frame: persist it before.
        """
        while True:
            if self._clock() >= self._next_read:
                self._next_read = self._clock() + (EVERY if self._follow() else AFTER_FAILURE)
            self._obey_holds()
            if self._pace.may_begin(self._rules.rate):
                break
        self._pace.begin(0 if self._rules.rate is None else batch.count())
        return self._rules

    def _obey_holds(self) -> None:
        holds = tuple(self._state.holds.in_force(int(self._wall() * 1000)).records.values())
        if holds != self._rules.holds:
            what = "; ".join(f"{hold.what}, by {hold.who}" for hold in holds) or "nothing"
            _LOG.warning("%s", line_of(f"on hold: {what}"))
            self._rules = replace(self._rules, holds=holds)

    def _follow(self) -> bool:
        """Read what is new and apply it. Whether it could be read."""
        try:
            log = self._log = self._log or ControlLog(Cluster(self._client, CLIENT), self._rules.names)
            if not log.is_there():
                raise LookupError(f"{self._rules.names.policy} does not exist")
            log.read_on(self._state)
            against = self._apply(log)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, a batch must not wait for the policy
            why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            self._warn(f"the group's policy cannot be read, the last known one applies: {why}")
            return False
        self._warn(f"the group's policy is not applied, the one before it stays in force: {against}" if against else "")
        return True

    def _apply(self, log: ControlLog) -> str:
        """Apply the newest settings and policy that can be, or return the reason against others; empty if all are."""
        against, policies = "", self._state.policies
        unread = "" if policies.newest is None else policies.newest.fault
        live = self._state.live_settings(int(self._wall() * 1000))
        for values in (*(one.record.values for one in live), {}):
            for policy in (policies.in_force, self._policy):
                fault = self._against(values, policy, log)
                if not fault:
                    self._policy = policy
                    return against or unread
                against = against or fault
        return against

    def _against(self, values: Values, record: PolicyRecord | None, log: ControlLog) -> str:
        try:
            rules = with_policy(self._rules, {**values, **({} if record is None else record.policy)})
        except ValueError as fault:
            return str(fault)
        added = rules.levels.keys() - self._rules.levels.keys()
        if added - log.cluster.visible(added).keys():
            return f"level topics are missing, of {', '.join(sorted(added))}; `reconsume topics apply` creates them"
        if rules != self._rules:
            who = "no record" if record is None else record.who
            who = f"{who}, over the settings of sidecars" if values else who
            changed = ", ".join(changes(self._rules, rules))
            _LOG.info("%s", line_of(f"the group's policy changed, by {who}: {changed}"))
            self._rules = rules
        return ""

    def _warn(self, text: str) -> None:
        """Log what is wrong, once until it changes."""
        if text and text != self._warned:
            _LOG.warning("%s", line_of(text))
        self._warned = text


class Pace:
    """Keeps the batches of a query below a rate: the next one begins once the last one has had its time."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock, self._sleep = clock, sleep
        self._began, self._records = clock(), 0

    def may_begin(self, rate: Rate | None) -> bool:
        """Return whether the next batch may begin. If not, wait until it may, EVERY seconds at most: a rate changes."""
        rest = 0.0 if rate is None else self._began + self._records / rate.per_second - self._clock()
        if rest > 0:
            self._sleep(min(rest, EVERY))
        return rest <= 0

    def begin(self, records: int) -> None:
        """Note that a batch of so many records begins."""
        self._began, self._records = self._clock(), records


def line_of(text: str) -> str:
    """Return a text as one line for the log, whatever somebody has put into it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_LINE])


def changes(old: Rules, new: Rules) -> list[str]:
    """Return the keys of the policy whose values have another meaning now."""
    fields = {"levels": ("table", "delays"), "rules": ("retry_rules",), "group_rate": ()}
    return [key for key in KEYS if any(getattr(old, name) != getattr(new, name) for name in fields.get(key, (key,)))]
