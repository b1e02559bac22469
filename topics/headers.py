"""Our headers on a Kafka record: one parse, one render (contract §3).

Headers are untrusted. On a main topic ours are ignored; on our own topics each has one strict form, and what breaks it
is a value that says why, never an exception. Numbers are checked as bytes: `int()` alone would also take `-1`, `1_0`
and the digits of every script. The record's own headers pass through untouched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container
from typing import TypeAlias

import msgspec

Headers: TypeAlias = list[tuple[str, bytes | None]]
"""All headers of a record in their order, with duplicates; null (None) is not empty."""

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RETRY_TOPIC = "RETRY_TOPIC"
RECONSUMETIMES = "RECONSUMETIMES"
RETRY_REDRIVES = "RETRY_REDRIVES"
RETRY_DUE_AT = "RETRY_DUE_AT"
RETRY_REAL_TIMESTAMP = "RETRY_REAL_TIMESTAMP"
RETRY_FIRST_FAILED_AT = "RETRY_FIRST_FAILED_AT"
RETRY_REASON = "RETRY_REASON"
RETRY_GROUP = "RETRY_GROUP"
OLD_MESSAGE_ID = "ORIGIN_MESSAGE_IDY_TIME"
"""What older Pulsar clients call ORIGIN_MESSAGE_ID: read, never written."""

OURS: frozenset[str] = frozenset(
    {
        REAL_TOPIC,
        ORIGIN_MESSAGE_ID,
        RETRY_TOPIC,
        RECONSUMETIMES,
        RETRY_REDRIVES,
        RETRY_DUE_AT,
        RETRY_REAL_TIMESTAMP,
        RETRY_FIRST_FAILED_AT,
        RETRY_REASON,
        RETRY_GROUP,
        OLD_MESSAGE_ID,
    }
)

DLQ_TOPIC = "__dlq.errors.topic"
DLQ_PARTITION = "__dlq.errors.partition"
DLQ_OFFSET = "__dlq.errors.offset"
DLQ_GROUP = "__dlq.errors.group"
DLQ_DELIVERY_COUNT = "__dlq.errors.delivery.count"
DLQ_MESSAGE = "__dlq.errors.message"
DEAD_LETTER: frozenset[str] = frozenset(
    {DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_DELIVERY_COUNT, DLQ_MESSAGE}
)
"""The six keys of KIP-1191, by which tools made for share groups read a dead letter."""

RETRY_TRACEPARENT = "RETRY_TRACEPARENT"
"""The trace context of the attempt before, in the form of W3C's `traceparent`; only where attempts are traced. The
record's own `traceparent` stays its producer's."""

DROPPED = OURS | DEAD_LETTER | {RETRY_TRACEPARENT}

RESERVED = "RETRY_"
"""How the name of a header begins that a later version may add. Such a header is carried along like the record's own,
and never refused, so that a version that knows it finds it again behind one that does not."""

LONGEST_REASON = 1024
"""Bytes of UTF-8. It is carried twice on a dead letter and must stay far below the 16 KiB we allow for our headers."""

LARGEST_PARTITION = 2**31 - 1
LARGEST_LONG = 2**63 - 1
COUNT_DIGITS = 6
TIME_DIGITS = 16
# A producer may stamp nanoseconds on a main topic; that is its business, and no reason to refuse our own copy.
TIMESTAMP_DIGITS = 19
TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# No leading zeros: one record must not have two ids.
ID = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})")


class RetryState(msgspec.Struct, frozen=True, gc=False):
    """What our headers say of a record's life: who it was, how often it was retried, when it is due. Times epoch ms."""

    id: str
    topic: str
    times: int = 0
    redrives: int = 0
    due_at: int = 0
    timestamp: int = 0
    first_failed_at: int = 0
    reason: str = ""


class BadHeader(msgspec.Struct, frozen=True):
    """Why a record's headers may not be believed, as one sentence for people."""

    text: str


def parse_retry_headers(headers: Headers, topics: Container[str], latest_due: int) -> RetryState | BadHeader:
    """The life of a record of our own topics; BadHeader when a header of ours is missing, doubled or not in its form.

    `topics`: those that REAL_TOPIC may name. A due time after `latest_due` (epoch ms) is refused. Never raises.
    """
    ours: dict[str, bytes] = {}
    for key, value in headers:
        if key in OURS:
            if value is None:
                return BadHeader(f"{key} is null")
            if key in ours:
                return BadHeader(f"{key} is there twice")
            ours[key] = value
    try:
        return read_life(ours, topics, latest_due)
    except ValueError as fault:
        return BadHeader(str(fault))


def read_life(ours: dict[str, bytes], topics: Container[str], latest_due: int) -> RetryState:
    """The life in our headers, each once; ValueError in one sentence when one is not in its form."""
    topic = text_of(ours, REAL_TOPIC)
    if topic not in topics:
        raise ValueError(refusal(REAL_TOPIC, ours, "one of the group's topics"))
    text_of(ours, RETRY_TOPIC)
    text_of(ours, RETRY_GROUP)
    if RECONSUMETIMES not in ours:
        raise ValueError(f"{RECONSUMETIMES} is missing")
    due_at = number_of(ours, RETRY_DUE_AT, TIME_DIGITS)
    if due_at > latest_due:
        raise ValueError(f"{RETRY_DUE_AT} is {due_at}, further off than the longest delay allowed")
    return RetryState(
        id=id_of(ours),
        topic=topic,
        times=number_of(ours, RECONSUMETIMES, COUNT_DIGITS),
        redrives=number_of(ours, RETRY_REDRIVES, COUNT_DIGITS),
        due_at=due_at,
        timestamp=number_of(ours, RETRY_REAL_TIMESTAMP, TIMESTAMP_DIGITS),
        first_failed_at=number_of(ours, RETRY_FIRST_FAILED_AT, TIME_DIGITS),
        reason=reason_of(ours),
    )


def id_of(ours: dict[str, bytes]) -> str:
    """The origin id, from the key of today or the old one; ValueError unless it is of the topic in REAL_TOPIC."""
    key = ORIGIN_MESSAGE_ID if ORIGIN_MESSAGE_ID in ours else OLD_MESSAGE_ID
    if key not in ours:
        raise ValueError(f"{ORIGIN_MESSAGE_ID} is missing")
    match = ID.fullmatch(ours[key])
    if match is None or int(match[2]) > LARGEST_PARTITION or int(match[3]) > LARGEST_LONG:
        raise ValueError(refusal(key, ours, "topic:partition:offset"))
    if match[1] != ours[REAL_TOPIC]:
        raise ValueError(refusal(key, ours, f"of the topic that {REAL_TOPIC} names"))
    return ours[key].decode()


def number_of(ours: dict[str, bytes], key: str, digits: int) -> int:
    """The number under `key`, 0 when absent; ValueError unless it is 1 to `digits` digits and fits Kafka's long."""
    value = ours.get(key)
    if value is None:
        return 0
    # `isdigit` of bytes knows ASCII only, unlike that of text; and on this hot path a pattern would cost twice as much.
    if len(value) <= digits and value.isdigit() and (number := int(value)) <= LARGEST_LONG:
        return number
    raise ValueError(refusal(key, ours, f"a number of 1 to {digits} digits"))


def text_of(ours: dict[str, bytes], key: str) -> str:
    """The text under `key`, empty when absent; ValueError unless it is UTF-8."""
    try:
        return ours.get(key, b"").decode()
    except UnicodeDecodeError:
        raise ValueError(refusal(key, ours, "UTF-8")) from None


def reason_of(ours: dict[str, bytes]) -> str:
    """The last failure's reason, made printable: relayed services write it too. ValueError above 1 KiB."""
    if len(ours.get(RETRY_REASON, b"")) > LONGEST_REASON:
        raise ValueError(f"{RETRY_REASON} is longer than {LONGEST_REASON} bytes")
    return shortened(text_of(ours, RETRY_REASON))


def refusal(key: str, ours: dict[str, bytes], form: str) -> str:
    """One sentence about a header that is not in its form; the value shortened and in ASCII, for logs."""
    return f"{key} is {ours[key][:60]!r}, not {form}" if key in ours else f"{key} is missing"


def render_retry_headers(life: RetryState, group: str, retry_topic: str) -> Headers:
    """Our headers for a copy that is written to `retry_topic`; `parse_retry_headers` reads the same life from them."""
    return [
        (REAL_TOPIC, life.topic.encode()),
        (ORIGIN_MESSAGE_ID, life.id.encode()),
        (RETRY_TOPIC, retry_topic.encode()),
        (RECONSUMETIMES, b"%d" % life.times),
        (RETRY_REDRIVES, b"%d" % life.redrives),
        (RETRY_DUE_AT, b"%d" % life.due_at),
        # Kafka gives −1 for a record without a timestamp: 0, which also says "none", keeps the form.
        (RETRY_REAL_TIMESTAMP, b"%d" % max(life.timestamp, 0)),
        (RETRY_FIRST_FAILED_AT, b"%d" % life.first_failed_at),
        (RETRY_REASON, life.reason.encode()),
        (RETRY_GROUP, group.encode()),
    ]


def without_ours(headers: Headers) -> Headers:
    """The record's own headers: order, duplicates and nulls kept, ours and those of KIP-1191 dropped."""
    return [header for header in headers if header[0] not in DROPPED]


def attempt_before(headers: Headers) -> bytes | None:
    """The trace context of the attempt before; None where there is none, or none in its strict form."""
    found = (value for name, value in headers if name == RETRY_TRACEPARENT)
    return next((value for value in found if value is not None and TRACEPARENT.fullmatch(value)), None)


def dead_letter_headers(life: RetryState, group: str, deliveries: int) -> Headers:
    """The six `__dlq.errors.*` headers of KIP-1191; topic, partition and offset are those of the first copy."""
    topic, partition, offset = life.id.rsplit(":", 2)
    return [
        (DLQ_TOPIC, topic.encode()),
        (DLQ_PARTITION, partition.encode()),
        (DLQ_OFFSET, offset.encode()),
        (DLQ_GROUP, group.encode()),
        (DLQ_DELIVERY_COUNT, b"%d" % deliveries),
        (DLQ_MESSAGE, life.reason.encode()),
    ]


@functools.lru_cache(maxsize=256)  # a service fails in few ways, and often
def reason_text(reason_class: str, text: str) -> str:
    """RETRY_REASON: `class` or `class: text`, at most 1 KiB of UTF-8, every unprintable character a space."""
    return shortened(f"{reason_class}: {text}" if text else reason_class)


def reason_class(reason: str) -> str:
    """The class alone of a RETRY_REASON, which is what events and metrics carry."""
    return reason.partition(": ")[0]


def shortened(text: str) -> str:
    """`text` in at most 1 KiB of UTF-8, cut between characters, every unprintable character a space."""
    if not text.isprintable():  # false for controls, lone surrogates, and marks that turn a terminal's text around
        text = "".join(char if char.isprintable() else " " for char in text[:LONGEST_REASON])
    data = text.encode()
    return text if len(data) <= LONGEST_REASON else data[:LONGEST_REASON].decode(errors="ignore")


EDITED = "RETRY_EDITED"
"""The audit header of a dead letter that was changed by hand: JSON with who, at (epoch ms), and SHA-256 of the value
as it was and as it is. It stays with the record like its own headers; a second edit adds a second one."""
