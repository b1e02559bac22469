"""Read the retry headers of other systems, for a group that moves here with records still in retry.

There is one table for each system, and one reader for all. The headers are on a main topic, where anyone may write.
Each value therefore has one strict form, a malformed value counts as absent, and nothing here raises. The names and
forms come from the classes named at each table. `docs/migrate-headers.md` shows the same table to people.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from reconsume.topics import foreign_values as forms
from reconsume.topics.foreign_values import Form
from reconsume.topics.retry_headers import LARGEST_COUNT, Headers, RetryState


class Meaning(enum.StrEnum):
    """The meaning of one foreign header."""

    TIMES = "times"
    TIMESTAMP = "original timestamp"
    FIRST_FAILED_AT = "first failed at"
    TOPIC = "original topic"
    PARTITION = "original partition"
    OFFSET = "original offset"
    ID = "original id"
    NOTHING = "not read"


class Rule(msgspec.Struct, frozen=True):
    """One foreign header.

    If it is there several times, the last one counts, as in the clients of that system. With `first`, the first one
    counts.
    """

    header: str
    meaning: Meaning
    form: Form
    first: bool = False


class System(msgspec.Struct, frozen=True):
    """All headers that are read of one system. Of two headers with the same meaning, the earlier rule wins.

    `counts_all`: a record without a count was never retried. Otherwise, its original topic alone says that it failed
    once: it is a dead letter of a service that did not retry.
    """

    rules: tuple[Rule, ...]
    counts_all: bool


class Foreign(msgspec.Struct, frozen=True, gc=False):
    """The values of another system's headers.

    `times`, at least 1, is the value of RECONSUMETIMES if Reconsume had made these retries. Times are epoch ms, 0 if
    not given. Partition and offset are −1 if not given. None of the values was checked against Kafka.
    """

    system: str
    times: int
    timestamp: int = 0
    first_failed_at: int = 0
    topic: str = ""
    partition: int = -1
    offset: int = -1
    id: str = ""


Said: TypeAlias = Mapping[str, bytes | None]


SPRING = System(
    # DeadLetterPublishingRecovererFactory writes RetryTopicHeaders, and by default keeps all earlier values.
    # DeadLetterRecordManager writes KafkaHeaders.ORIGINAL_* (retry topics) and DLT_ORIGINAL_* (a dead letter alone). It
    # appends one more set each time, so the first set is of the first failure.
    (
        Rule("retry_topic-attempts", Meaning.TIMES, forms.ATTEMPTS),
        Rule("retry_topic-original-timestamp", Meaning.TIMESTAMP, forms.BIG_INTEGER),
        Rule("kafka_original-timestamp", Meaning.TIMESTAMP, forms.INT64, first=True),
        Rule("kafka_dlt-original-timestamp", Meaning.TIMESTAMP, forms.INT64, first=True),
        Rule("kafka_original-topic", Meaning.TOPIC, forms.NAME, first=True),
        Rule("kafka_dlt-original-topic", Meaning.TOPIC, forms.NAME, first=True),
        Rule("kafka_original-partition", Meaning.PARTITION, forms.INT32, first=True),
        Rule("kafka_dlt-original-partition", Meaning.PARTITION, forms.INT32, first=True),
        Rule("kafka_original-offset", Meaning.OFFSET, forms.INT64, first=True),
        Rule("kafka_dlt-original-offset", Meaning.OFFSET, forms.INT64, first=True),
        Rule("retry_topic-backoff-timestamp", Meaning.NOTHING, forms.ANY),
    ),
    counts_all=False,
)
PULSAR_AND_TDMQ = System(
    # RetryMessageUtil, written by ConsumerImpl.doReconsumeLater; ORIGIN_MESSAGE_IDY_TIME is its older key.
    (
        Rule("RECONSUMETIMES", Meaning.TIMES, forms.COUNT),
        Rule("REAL_TOPIC", Meaning.TOPIC, forms.TEXT),
        Rule("ORIGIN_MESSAGE_ID", Meaning.ID, forms.PULSAR),
        Rule("ORIGIN_MESSAGE_IDY_TIME", Meaning.ID, forms.PULSAR),
        Rule("RETRY_TOPIC", Meaning.NOTHING, forms.ANY),
        Rule("DELAY_TIME", Meaning.NOTHING, forms.ANY),
    ),
    counts_all=True,
)
SMALLRYE = System(
    # KafkaDelayedRetryTopic and KafkaDeadLetterQueue both put the newest value before the older ones. The last value is
    # therefore of the first failure. First processing is the time of the first nack.
    (
        Rule("delayed-retry-count", Meaning.TIMES, forms.COUNT_BEFORE),
        Rule("delayed-retry-original-timestamp", Meaning.TIMESTAMP, forms.DIGITS),
        Rule("delayed-retry-first-processing-timestamp", Meaning.FIRST_FAILED_AT, forms.DIGITS),
        Rule("delayed-retry-topic", Meaning.TOPIC, forms.NAME),
        Rule("dead-letter-topic", Meaning.TOPIC, forms.NAME),
        Rule("delayed-retry-partition", Meaning.PARTITION, forms.PARTITION),
        Rule("dead-letter-partition", Meaning.PARTITION, forms.PARTITION),
        Rule("delayed-retry-offset", Meaning.OFFSET, forms.DIGITS),
        Rule("dead-letter-offset", Meaning.OFFSET, forms.DIGITS),
    ),
    counts_all=False,
)
ROCKETMQ = System(
    # MessageConst, written by DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage and the broker's
    # AbstractSendMessageProcessor. A first message sent through the 5.x proxy (SendMessageActivity) has the count 0.
    (
        Rule("RECONSUME_TIME", Meaning.TIMES, forms.COUNT),
        Rule("BORN_TIMESTAMP", Meaning.TIMESTAMP, forms.DIGITS),
        Rule("RETRY_TOPIC", Meaning.TOPIC, forms.TEXT),
        Rule("ORIGIN_MESSAGE_ID", Meaning.ID, forms.TEXT),
        Rule("DELAY", Meaning.NOTHING, forms.ANY),
        Rule("REAL_TOPIC", Meaning.NOTHING, forms.ANY),
    ),
    counts_all=True,
)
SYSTEMS: Mapping[str, System] = {
    "spring": SPRING,
    "pulsar": PULSAR_AND_TDMQ,
    "smallrye": SMALLRYE,
    "rocketmq": ROCKETMQ,
}


_BY_HEADER: Mapping[str, Mapping[str, Rule]] = {
    name: {rule.header: rule for rule in system.rules} for name, system in SYSTEMS.items()
}


def read_foreign(headers: Headers, systems: Iterable[str]) -> Foreign | None:
    """Return the values for the first of `systems` that retried the record. None if none of them did."""
    for name in systems:
        foreign = _read(name, headers)
        if foreign is not None:
            return foreign
    return None


def _read(name: str, headers: Headers) -> Foreign | None:
    rules, said = _BY_HEADER[name], dict[str, bytes | None]()
    for key, value in headers:
        rule = rules.get(key)
        if rule is not None and not (rule.first and key in said):
            said[key] = value
    if not said:
        return None
    system = SYSTEMS[name]
    topic = _text(system, Meaning.TOPIC, said)
    times = _times(system, topic, said)
    if not 1 <= times <= LARGEST_COUNT:
        return None
    return Foreign(
        system=name,
        times=times,
        timestamp=_number(system, Meaning.TIMESTAMP, said, 0),
        first_failed_at=_number(system, Meaning.FIRST_FAILED_AT, said, 0),
        topic=topic,
        partition=_number(system, Meaning.PARTITION, said, -1),
        offset=_number(system, Meaning.OFFSET, said, -1),
        id=_text(system, Meaning.ID, said),
    )


def _times(system: System, topic: str, said: Said) -> int:
    """Return the count, 0 if it is malformed. If there is no count header, 1 for a dead letter, else 0."""
    if system.counts_all or any(rule.header in said for rule in system.rules if rule.meaning is Meaning.TIMES):
        return _number(system, Meaning.TIMES, said, 0)
    return 1 if topic else 0


def _number(system: System, meaning: Meaning, said: Said, otherwise: int) -> int:
    number = _value(system, meaning, said)
    return number if isinstance(number, int) else otherwise


def _text(system: System, meaning: Meaning, said: Said) -> str:
    text = _value(system, meaning, said)
    return text if isinstance(text, str) else ""


def _value(system: System, meaning: Meaning, said: Said) -> int | str | None:
    for rule in system.rules:
        value = said.get(rule.header) if rule.meaning is meaning else None
        parsed = None if value is None else rule.form.read(value)
        if parsed is not None:
            return parsed
    return None


def foreign_life(foreign: Foreign, position: tuple[str, int, int], timestamp: int, now: int) -> RetryState:
    """Return the retry state of a record that another system retried. The record is due at once.

    The count and the times are those of the other system. Topic, partition and offset are ours. A foreign time
    after `now` (epoch ms) is ignored.
    """
    topic, partition, offset = position
    return RetryState(
        id=f"{topic}:{partition}:{offset}",
        topic=topic,
        times=foreign.times,
        timestamp=foreign.timestamp if 0 < foreign.timestamp <= now else timestamp,
        first_failed_at=foreign.first_failed_at if foreign.first_failed_at <= now else 0,
        reason=f"retried-by-{foreign.system}",
    )
