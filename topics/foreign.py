"""What the retry headers of other systems mean, for a group that moves here with records still in retry.

A table a system, and one reading of it. Their headers stand on a main topic, where anybody may write: each value has
one strict form, what breaks it counts as absent, and nothing here raises. The names and forms are facts of the classes
named at each table; `docs/migrate-headers.md` shows the same table to people.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from topics.headers import LARGEST_LONG, LARGEST_PARTITION, TIMESTAMP_DIGITS, Headers, Life

LARGEST_COUNT = 999_999
"""What RECONSUMETIMES can carry."""
LARGEST_ATTEMPT = 32_767
"""Spring's own cap (ATTEMPTS_HARD_CAP): it takes a larger number for a forged one."""
LONGEST_TEXT = 1_024

TOPIC_NAME = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
PULSAR_ID = re.compile(rb"[0-9]{1,19}(:-?[0-9]{1,19}){2,3}")


class Meaning(enum.StrEnum):
    """What one of their headers says."""

    TIMES = "times"
    TIMESTAMP = "original timestamp"
    FIRST_FAILED_AT = "first failed at"
    TOPIC = "original topic"
    PARTITION = "original partition"
    OFFSET = "original offset"
    ID = "original id"
    NOTHING = "not read"


class Form(msgspec.Struct, frozen=True):
    """How a value is written. `read` gives None for everything else, and never raises; `text` is for people."""

    text: str
    read: Callable[[bytes], int | str | None]


class Rule(msgspec.Struct, frozen=True):
    """One of their headers. Where it is there several times the last counts, as in their clients; or the `first`."""

    header: str
    meaning: Meaning
    form: Form
    first: bool = False


class System(msgspec.Struct, frozen=True):
    """All that is read of one system; of two headers with one meaning the earlier rule wins.

    `counts_all`: a record without a count was never retried. Else its original topic alone says that it failed once:
    a dead letter of a service that did not retry.
    """

    rules: tuple[Rule, ...]
    counts_all: bool


class Foreign(msgspec.Struct, frozen=True, gc=False):
    """What their headers say. `times`, at least 1, is what RECONSUMETIMES would be had we made their retries.

    Times are epoch ms, 0 where nothing is said; partition and offset −1. Nobody has checked any of it against Kafka.
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


def decimal(data: bytes) -> int | None:
    """Digits of ASCII, without a sign, that fit Kafka's long."""
    # `isdigit` of bytes knows ASCII only; `int()` alone would also take `-1`, `1_0` and the digits of every script.
    if len(data) > TIMESTAMP_DIGITS or not data.isdigit():
        return None
    number = int(data)
    return number if number <= LARGEST_LONG else None


def big_endian(data: bytes, sizes: Iterable[int], largest: int) -> int | None:
    """A signed big-endian number, not negative, in one of `sizes` bytes: Java's ByteBuffer and BigInteger."""
    if len(data) not in sizes:
        return None
    number = int.from_bytes(data, signed=True)
    return number if 0 <= number <= largest else None


def attempts(data: bytes) -> int | None:
    """Spring's number of the coming delivery; older versions wrote one unsigned byte."""
    number = data[0] if len(data) == 1 else big_endian(data, (4,), LARGEST_ATTEMPT)
    return None if number is None or number < 1 else number - 1


def count_before(data: bytes) -> int | None:
    """SmallRye's count, which it raises only when it reads the record back: this delivery is one retry more."""
    number = decimal(data)
    return None if number is None else number + 1


def partition_number(data: bytes) -> int | None:
    """A partition in digits."""
    number = decimal(data)
    return number if number is not None and number <= LARGEST_PARTITION else None


def topic_name(data: bytes) -> str | None:
    """A name that Kafka takes."""
    return data.decode("ascii") if TOPIC_NAME.fullmatch(data) is not None else None


def pulsar_id(data: bytes) -> str | None:
    """Pulsar's `ledger:entry:partition`, with or without the place in a batch."""
    return data.decode("ascii") if PULSAR_ID.fullmatch(data) is not None else None


def text(data: bytes) -> str | None:
    """Printable UTF-8 of at most 1 KiB."""
    try:
        found = data.decode() if len(data) <= LONGEST_TEXT else ""
    except UnicodeDecodeError:
        return None
    return found if found and found.isprintable() else None


DIGITS = Form("digits", decimal)
COUNT = Form("digits: n", decimal)
COUNT_BEFORE = Form("digits: n + 1", count_before)
ATTEMPTS = Form("4 bytes, big-endian (or 1 byte): n − 1", attempts)
PARTITION = Form("digits", partition_number)
NAME = Form("a Kafka topic's name", topic_name)
TEXT = Form("UTF-8", text)
PULSAR = Form("`ledger:entry:partition`", pulsar_id)
INT32 = Form("4 bytes, big-endian", lambda data: big_endian(data, (4,), LARGEST_PARTITION))
INT64 = Form("8 bytes, big-endian", lambda data: big_endian(data, (8,), LARGEST_LONG))
BIG_INTEGER = Form("1 to 8 bytes, big-endian", lambda data: big_endian(data, range(1, 9), LARGEST_LONG))
ANY = Form("any", lambda _: None)

SPRING = System(
    # RetryTopicHeaders, written by DeadLetterPublishingRecovererFactory, which keeps all earlier values unless told
    # otherwise; KafkaHeaders.ORIGINAL_* (retry topics) and DLT_ORIGINAL_* (a dead letter alone), by
    # DeadLetterRecordManager, which appends one more set each time: the first is of the first failure.
    (
        Rule("retry_topic-attempts", Meaning.TIMES, ATTEMPTS),
        Rule("retry_topic-original-timestamp", Meaning.TIMESTAMP, BIG_INTEGER),
        Rule("kafka_original-timestamp", Meaning.TIMESTAMP, INT64, first=True),
        Rule("kafka_dlt-original-timestamp", Meaning.TIMESTAMP, INT64, first=True),
        Rule("kafka_original-topic", Meaning.TOPIC, NAME, first=True),
        Rule("kafka_dlt-original-topic", Meaning.TOPIC, NAME, first=True),
        Rule("kafka_original-partition", Meaning.PARTITION, INT32, first=True),
        Rule("kafka_dlt-original-partition", Meaning.PARTITION, INT32, first=True),
        Rule("kafka_original-offset", Meaning.OFFSET, INT64, first=True),
        Rule("kafka_dlt-original-offset", Meaning.OFFSET, INT64, first=True),
        Rule("retry_topic-backoff-timestamp", Meaning.NOTHING, ANY),
    ),
    counts_all=False,
)
PULSAR_AND_TDMQ = System(
    # RetryMessageUtil, written by ConsumerImpl.doReconsumeLater; ORIGIN_MESSAGE_IDY_TIME is its older key.
    (
        Rule("RECONSUMETIMES", Meaning.TIMES, COUNT),
        Rule("REAL_TOPIC", Meaning.TOPIC, TEXT),
        Rule("ORIGIN_MESSAGE_ID", Meaning.ID, PULSAR),
        Rule("ORIGIN_MESSAGE_IDY_TIME", Meaning.ID, PULSAR),
        Rule("RETRY_TOPIC", Meaning.NOTHING, ANY),
        Rule("DELAY_TIME", Meaning.NOTHING, ANY),
    ),
    counts_all=True,
)
SMALLRYE = System(
    # KafkaDelayedRetryTopic and KafkaDeadLetterQueue: both put the newest value before the older ones, so that the last
    # is of the first failure. First processing is the time of the first nack.
    (
        Rule("delayed-retry-count", Meaning.TIMES, COUNT_BEFORE),
        Rule("delayed-retry-original-timestamp", Meaning.TIMESTAMP, DIGITS),
        Rule("delayed-retry-first-processing-timestamp", Meaning.FIRST_FAILED_AT, DIGITS),
        Rule("delayed-retry-topic", Meaning.TOPIC, NAME),
        Rule("dead-letter-topic", Meaning.TOPIC, NAME),
        Rule("delayed-retry-partition", Meaning.PARTITION, PARTITION),
        Rule("dead-letter-partition", Meaning.PARTITION, PARTITION),
        Rule("delayed-retry-offset", Meaning.OFFSET, DIGITS),
        Rule("dead-letter-offset", Meaning.OFFSET, DIGITS),
    ),
    counts_all=False,
)
ROCKETMQ = System(
    # MessageConst, written by DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage and the broker's
    # AbstractSendMessageProcessor. A first message sent through the 5.x proxy (SendMessageActivity) has the count 0.
    (
        Rule("RECONSUME_TIME", Meaning.TIMES, COUNT),
        Rule("BORN_TIMESTAMP", Meaning.TIMESTAMP, DIGITS),
        Rule("RETRY_TOPIC", Meaning.TOPIC, TEXT),
        Rule("ORIGIN_MESSAGE_ID", Meaning.ID, TEXT),
        Rule("DELAY", Meaning.NOTHING, ANY),
        Rule("REAL_TOPIC", Meaning.NOTHING, ANY),
    ),
    counts_all=True,
)
SYSTEMS: Mapping[str, System] = {
    "spring": SPRING,
    "pulsar": PULSAR_AND_TDMQ,
    "smallrye": SMALLRYE,
    "rocketmq": ROCKETMQ,
}


def read_foreign(headers: Headers, systems: Iterable[str]) -> Foreign | None:
    """What the first of `systems` says that says anything; None for a record that none of them retried."""
    for name in systems:
        found = _read(name, SYSTEMS[name], headers)
        if found is not None:
            return found
    return None


def foreign_life(foreign: Foreign, place: tuple[str, int, int], timestamp: int, now: int) -> Life:
    """The life of a record that another system retried: their count and times, our place (topic, partition, offset).

    A time of theirs that is not past at `now` (epoch ms) is not believed. It is due at once.
    """
    topic, partition, offset = place
    return Life(
        id=f"{topic}:{partition}:{offset}",
        topic=topic,
        times=foreign.times,
        timestamp=foreign.timestamp if 0 < foreign.timestamp <= now else timestamp,
        first_failed_at=foreign.first_failed_at if foreign.first_failed_at <= now else 0,
        reason=f"retried-by-{foreign.system}",
    )
