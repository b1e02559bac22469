"""Follow the group: the rules in force, by its policy, its live sidecars and its holds, over the job's own values.

The control log (partition 0 of the policy topic) is read on the driver before a batch, at most every EVERY seconds.
What it says of settings is applied as a whole or not at all, as by a sidecar (contract 10.2, 10.7): the newest settings
among the live sidecars, in which no job has a part, and over them the policy. Without a live sidecar the job's own
values apply below the policy. Holds apply one by one (contract 10.4). Nothing in the topic, and no broker that does not
answer, stops a batch: it goes on by the rules that are in force, and the log says why, once.

The second half reads the topic and asks for topics with Spark's own Kafka source, so that a job needs no other client.
Nothing is kept there between two reads but an offset. The records of a topic may be anything, so only the last record
of each known key comes back, of MOST_KEYS keys at most, whatever was written.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer.rules import KEYS, Rules, Values, with_policy
from reconsume.topics import versions
from reconsume.topics.agreement import (
    MOST_DIGESTS,
    SETTINGS,
    SILENT_AFTER,
    LiveSettings,
    SettingsHeard,
    SettingsRecord,
    newest_first,
)
from reconsume.topics.hold_record import HOLD, MOST_HOLDS, HoldHeard, HoldRecord, lasts_too_long
from reconsume.topics.policy_record import (
    INSTANCE,
    KEY,
    LARGEST,
    PARTITION,
    BadRecord,
    InstanceHeard,
    NewerRecord,
    PolicyHeard,
    PolicyRecord,
    parse_record,
)
from reconsume.topics.rates import Rate

EVERY = 5.0
"""Seconds between two reads. One takes a tenth of a second, and a batch may come each second."""
AFTER_FAILURE = 60.0
"""Seconds after a read that failed: it may have taken as long as brokers are given, and fills Spark's own log."""
LONGEST_LINE = 500
"""Characters of a line of the log. What is quoted in it comes from whoever may write to the topic."""
EARLIEST = -2
"""Kafka's word for the first offset of a partition."""
MOST_KEYS = 5_000
"""Policy, settings, holds and instances that come back: more than a group has."""
LOOK_BACK = 100
"""The most policies that are read to find one that can be read."""
ANSWER_MS = "5000"
"""ms that the brokers may take: a batch waits meanwhile."""
OPTIONS: Mapping[str, str] = {
    "kafka.isolation.level": "read_committed",
    "kafka.request.timeout.ms": ANSWER_MS,
    "kafka.default.api.timeout.ms": ANSWER_MS,
    "kafkaConsumer.pollTimeoutMs": ANSWER_MS,
    "fetchOffset.numRetries": "1",
    # The topic is compacted: offsets that are gone are no loss.
    "failOnDataLoss": "false",
}
NEVER = str(2**53)
"""Epoch ms. No record has a timestamp that late."""
OF_PRODUCERS = ("interceptor.classes",)
"""Settings of the copies' producer that a consumer would refuse."""

_LOG = logging.getLogger("reconsume.spark")


class Said(NamedTuple):
    """What the log says of an instance, of settings or of a hold, and when that was written (epoch ms)."""

    content: InstanceHeard | SettingsHeard | HoldHeard
    at: int


class PolicyNews(NamedTuple):
    """What is new in the policy topic from an offset on.

    `policy` is the newest policy that can be read; None if there is none. `fault` says why a newer one cannot be read;
    empty if there is none. `next_offset` is where the next read begins. `said`: the last record of each instance,
    of each settings and of each hold, in the order of the log.
    """

    policy: PolicyHeard | None
    next_offset: int
    fault: str = ""
    said: tuple[Said, ...] = ()


ReadPolicy: TypeAlias = Callable[[SparkSession, str, int], PolicyNews]
"""A function that returns the news of a topic from an offset on. It raises if it cannot be read."""
Missing: TypeAlias = Callable[[SparkSession, Collection[str]], bool]
"""A function that says whether one of these topics does not exist."""


class PolicyFollower:
    """The rules in force in one job. It lives on the driver, and one query uses it."""

    def __init__(
        self,
        rules: Rules,
        kafka: Mapping[str, str] | None,
        *,
        read: ReadPolicy | None = None,
        are_missing: Missing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin with the job's own rules.

        `kafka` holds settings of Kafka's Java client, as text by name; None: nothing is read, and the job's own rules
        stay in force. `read` and `are_missing` replace the reads by Spark's Kafka source, `clock` and `wall` tell the
        seconds, the second since 1970, and `sleep` waits for seconds.
        """
        settings = kafka or {}
        self._rules = rules
        self._read = read or (lambda session, topic, begin: read_policy(session, settings, topic, begin))
        self._are_missing = are_missing or (lambda session, topics: missing(session, settings, topics))
        self._clock, self._wall = clock, wall
        self._pace = Pace(clock, sleep)
        self._next_read = float("inf") if kafka is None else clock()
        self._state = LogState()
        self._policy: PolicyRecord | None = None
        """The policy in force."""
        self._warned = ""

    def rules(self, batch: DataFrame) -> Rules:
        """Return the rules for a batch, once their rate lets it begin. Whatever is in the topic, it raises nothing.

        With a rate, the rows of the batch are counted, which evaluates the frame: persist it before.
        """
        while True:
            if self._clock() >= self._next_read:
                self._next_read = self._clock() + (EVERY if self._follow(batch.sparkSession) else AFTER_FAILURE)
            self._obey_holds()
            if self._pace.may_begin(self._rules.rate):
                break
        self._pace.begin(0 if self._rules.rate is None else batch.count())
        return self._rules

    def _obey_holds(self) -> None:
        holds = self._state.holds_at(int(self._wall() * 1000))
        if holds != self._rules.holds:
            what = "; ".join(f"{hold.what}, by {hold.who}" for hold in holds) or "nothing"
            _LOG.warning("%s", line_of(f"on hold: {what}"))
            self._rules = replace(self._rules, holds=holds)

    def _follow(self, session: SparkSession) -> bool:
        """Read what is new and apply it. Whether it could be read."""
        try:
            news = self._news(session)
            self._state.take(news)
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
            return self._read(session, topic, self._state.next_offset)
        except Exception:
            if self._state.next_offset == EARLIEST:
                raise
            self._state = self._state.from_the_beginning()
            return self._read(session, topic, EARLIEST)

    def _apply(self, are_missing: Callable[[Collection[str]], bool]) -> str:
        """Apply the newest settings and policy that can be, or return the reason against others; empty if all are."""
        against = ""
        live = self._state.live(self._wall() * 1000)
        for values in (*(one.record.values for one in live), {}):
            for policy in (self._state.policy, self._policy):
                fault = self._against(values, policy, are_missing)
                if not fault:
                    self._policy = policy
                    return against or self._state.fault
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
        if text and text != self._warned:
            _LOG.warning("%s", line_of(text))
        self._warned = text


class LogState:
    """What the control log has said so far, as much of it as a job obeys."""

    def __init__(self) -> None:
        self.next_offset = EARLIEST
        self.policy: PolicyRecord | None = None
        """The newest policy that can be read."""
        self.fault = ""
        """Why a newer one cannot be read."""
        self._records: dict[str, SettingsRecord] = {}
        self._named: dict[str, tuple[str, int]] = {}
        """The digest that each sidecar names, and when it did (epoch ms)."""
        self._holds: dict[str, HoldRecord] = {}
        """The holds that were not released, by id. Some may be over."""

    def from_the_beginning(self) -> LogState:
        """Return what is still known if the topic was created again, and is read from its first record.

        Its holds go on: what an operator stopped must not begin because a topic is gone.
        """
        state = LogState()
        state.policy, state.fault, state._holds = self.policy, self.fault, self._holds
        return state

    def take(self, news: PolicyNews) -> None:
        """Take in what is new. Above a bound, the oldest are dropped."""
        self.next_offset = news.next_offset
        self.policy = self.policy if news.policy is None else news.policy.record
        self.fault = news.fault or ("" if news.policy else self.fault)
        for content, at in news.said:
            match content:
                case SettingsHeard(digest=digest, record=SettingsRecord() as settings):
                    self._records[digest] = settings
                case SettingsHeard(digest=digest):
                    self._records.pop(digest, None)
                case InstanceHeard(instance=name, record=beat):
                    self._named.pop(name, None)
                    if beat is not None:
                        self._named[name] = beat.settings, at
                case HoldHeard(id=ident, record=hold):
                    if hold is None or hold.released or lasts_too_long(hold, at):
                        self._holds.pop(ident, None)
                    else:
                        self._holds[ident] = hold
        while len(self._records) > MOST_DIGESTS:
            del self._records[min(self._records, key=lambda digest: (self._records[digest].rank, digest))]
        while len(self._named) > MOST_KEYS:
            del self._named[next(iter(self._named))]

    def live(self, now_ms: float) -> tuple[LiveSettings, ...]:
        """Return the settings of the sidecars that run at this time, the newest first."""
        named = {name: digest for name, (digest, at) in self._named.items() if at > now_ms - SILENT_AFTER}
        return newest_first(self._records, named)

    def holds_at(self, now_ms: int) -> tuple[HoldRecord, ...]:
        """Return the holds in force at this time: the first of them, as many as may be."""
        self._holds = {ident: hold for ident, hold in self._holds.items() if hold.until > now_ms}
        return tuple(self._holds.values())[:MOST_HOLDS]


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


# --- reading the topic ------------------------------------------------------------------------------------------------


def read_policy(session: SparkSession, kafka: Mapping[str, str], topic: str, begin: int = EARLIEST) -> PolicyNews:
    """Return the news of a policy topic from the offset `begin` on.

    Raises the errors of Spark and Kafka as they are, also if the topic does not exist.
    """
    rows = _rows(session, kafka, topic, begin)
    short = f.when(f.length("value") <= LARGEST, f.col("value")).otherwise(f.substring("value", 1, LARGEST + 1))
    written_at = (f.col("timestamp").cast("double") * 1000).cast("long")
    newest = f.max_by(f.struct(short.alias("value"), written_at.alias("at")), f.col("offset"))
    # In one partition, as the log has one: grouped without a shuffle.
    keyed = rows.coalesce(1).groupBy(f.when(_is_known(), f.col("key")).alias("key"))
    last = keyed.agg(f.max("offset").alias("last"), newest.alias("newest"))
    order = (f.desc(f.coalesce(f.col("key") == f.lit(KEY), f.lit(False))), f.desc("last"))
    newest_rows = {_bytes(row["key"]): row for row in last.orderBy(*order).limit(MOST_KEYS).collect()}
    next_offset = max((row["last"] + 1 for row in newest_rows.values()), default=begin)
    policy_row = newest_rows.pop(KEY, None)
    newest_rows.pop(None, None)
    said = tuple(
        Said(content, row["newest"]["at"])
        for key, row in sorted(newest_rows.items(), key=lambda item: item[1]["last"])
        if (content := _heard(key or b"", _bytes(row["newest"]["value"]))) is not None
    )
    if policy_row is None:
        return PolicyNews(None, next_offset, said=said)
    match parse_record(KEY, _bytes(policy_row["newest"]["value"])):
        case PolicyHeard() as policy:
            return PolicyNews(policy, next_offset, said=said)
        case NewerRecord(v=v):
            return PolicyNews(_readable(rows), next_offset, versions.sentence(v), said)
        case BadRecord(text=text):
            return PolicyNews(_readable(rows), next_offset, text, said)
    raise AssertionError("the key is that of a policy")


def _heard(key: bytes, value: bytes | None) -> InstanceHeard | SettingsHeard | HoldHeard | None:
    """Return what a record says; None for what cannot be read, which takes away settings and holds."""
    match parse_record(key, value):
        case (InstanceHeard() | SettingsHeard() | HoldHeard()) as content:
            return content
        case _ if key.startswith(SETTINGS):
            return SettingsHeard(key[len(SETTINGS) :].decode("ascii", errors="replace"), None)
        case _ if key.startswith(HOLD):
            return HoldHeard(key[len(HOLD) :].decode("ascii", errors="replace"), None)
    return None


def missing(session: SparkSession, kafka: Mapping[str, str], topics: Collection[str]) -> bool:
    """Whether one of the topics does not exist. Raises the other errors of Spark and Kafka as they are.

    Spark plans a read of all of them, from the end on: a job may write to the topics, and has no right to read them.
    """
    from_end = {"startingTimestamp": NEVER, "startingOffsetsByTimestampStrategy": "latest"}
    reader = session.read.format("kafka").options(**_options(kafka), **from_end, subscribe=",".join(sorted(topics)))
    try:
        reader.load().select("offset").collect()
    except Exception as error:
        if is_absent(error):
            return True
        raise
    return False


def is_absent(error: BaseException) -> bool:
    """Whether an error of Spark's Kafka source says that a topic does not exist."""
    return "UnknownTopicOrPartition" in str(error)


def _rows(session: SparkSession, kafka: Mapping[str, str], topic: str, begin: int) -> DataFrame:
    options = {
        **_options(kafka),
        "assign": json.dumps({topic: [PARTITION]}),
        "startingOffsets": json.dumps({topic: {str(PARTITION): begin}}),
    }
    return session.read.format("kafka").options(**options).load()


def _options(kafka: Mapping[str, str]) -> dict[str, str]:
    settings = {f"kafka.{name}": value for name, value in kafka.items() if name not in OF_PRODUCERS}
    return {**settings, **OPTIONS}


def _is_policy() -> Column:
    return f.col("key") == f.lit(KEY)


def _is_known() -> Column:
    known = _is_policy()
    for prefix in (INSTANCE, SETTINGS, HOLD):
        known |= f.col("key").startswith(f.lit(prefix))
    return known


def _readable(rows: DataFrame) -> PolicyHeard | None:
    """Return the newest policy that can be read, of the last LOOK_BACK ones; None if there is none."""
    short = rows.where(_is_policy() & (f.col("value").isNull() | (f.length("value") <= LARGEST)))
    kept = short.select("offset", "value").orderBy(f.desc("offset")).limit(LOOK_BACK).collect()
    policies = (parse_record(KEY, _bytes(row["value"])) for row in kept)
    return next((policy for policy in policies if isinstance(policy, PolicyHeard)), None)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
