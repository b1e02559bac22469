"""The headers that Reconsume adds to a Kafka record: one parser, one renderer (contract 3.5, 3.6).

Headers are untrusted. On a main topic ours are ignored. On our own topics each has one strict form; a malformed header
gives a value that says why, never an exception. Numbers are checked as bytes, because `int()` alone would also accept
`-1`, `1_0` and the digits of every script. The record's own headers pass through unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TypeAlias

import msgspec

from topics.reasons import LONGEST_REASON, shortened
from topics.retry_order import BEHIND, RETRY_BEHIND, RETRY_ORDER, Order, parse_order, render_order

Headers: TypeAlias = list[tuple[str, bytes | None]]
"""All headers of a record in their order, with duplicates. A null value (None) is not an empty one."""

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
RETRY_POSTPONED_AT = "RETRY_POSTPONED_AT"
"""When the service postponed the record first since its last failure, epoch ms; only on a copy that waits for that."""
RETRY_LAST_FAILED_AT = "RETRY_LAST_FAILED_AT"
"""When the record failed last, epoch ms. Absent where that is the first failure, and on copies of older writers."""
RETRY_MOST_TIMES = "RETRY_MOST_TIMES"
"""The most retries of the record in a life before its last redrive; only on copies of redriven records."""
OLD_MESSAGE_ID = "ORIGIN_MESSAGE_IDY_TIME"
"""The name of ORIGIN_MESSAGE_ID in older Pulsar clients. It is read, never written."""

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
        RETRY_POSTPONED_AT,
        RETRY_LAST_FAILED_AT,
        RETRY_MOST_TIMES,
        RETRY_ORDER,
        RETRY_BEHIND,
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
"""The six keys of KIP-1191. Tools for share groups read a dead letter by them."""

RETRY_TRACEPARENT = "RETRY_TRACEPARENT"
"""The trace context of the previous attempt, in the form of W3C's `traceparent`. It is there only if attempts are
traced. The record's own `traceparent` stays that of its producer."""

DROPPED = OURS | DEAD_LETTER | {RETRY_TRACEPARENT}

MOST_HEADERS = 100_000
"""Headers of a record that Kafka's client reads (librdkafka 2.16). It tells none of a record with more of them, as if
there were none."""
MOST_OF_OURS = 32
"""Headers that a copy has in addition to those of the record, at most."""
RESERVED = "RETRY_"
"""The prefix of headers that a later version may add. Such a header is kept like the record's own and is never refused.
A newer version then finds it again after an older one."""


LARGEST_PARTITION = 2**31 - 1
LARGEST_LONG = 2**63 - 1
COUNT_DIGITS = 6
LARGEST_COUNT = 10**COUNT_DIGITS - 1
"""The largest RECONSUMETIMES and RETRY_REDRIVES. A count stays there: with one digit more the strict form would refuse
the record for ever, and an ordered group can try a record a million times in place."""
TIME_DIGITS = 16
# A producer may stamp nanoseconds on a main topic. That is no reason to refuse our own copy.
TIMESTAMP_DIGITS = 19
TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# No leading zeros: one record must not have two ids.
ID = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})")


class RetryState(msgspec.Struct, frozen=True, gc=False):
    """The retry state in our headers: the record's id, its retries, when it is due. Times are epoch ms.

    `last_failed_at`: 0 if it is not known; in a copy that was read also if it is `first_failed_at`. `most_times`: the
    most retries in an earlier life; 0 without a redrive. `order`: its place among the records of its key, on copies in
    a queue topic. `behind`: it only waits behind an earlier one there.
    """

    id: str
    topic: str
    times: int = 0
    redrives: int = 0
    due_at: int = 0
    timestamp: int = 0
    first_failed_at: int = 0
    reason: str = ""
    postponed_at: int = 0
    last_failed_at: int = 0
    most_times: int = 0
    order: Order | None = None
    behind: bool = False


class BadHeader(msgspec.Struct, frozen=True):
    """The reason why a record's headers are refused, as one sentence for people."""

    text: str


def parse_retry_headers(headers: Headers, topics: Container[str], latest_due: int) -> RetryState | BadHeader:
    """Return the retry state of a record of our own topics. Never raises.

    BadHeader if a header of ours is null, duplicate or malformed, or a required one is missing. `topics`: the names
    that are allowed in REAL_TOPIC. A due time after `latest_due` (epoch ms) is refused.
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
    """Return the retry state in our headers, each of which occurs once.

    Raises ValueError in one sentence if one is malformed, or a required one is missing.
    """
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
        postponed_at=number_of(ours, RETRY_POSTPONED_AT, TIME_DIGITS),
        last_failed_at=number_of(ours, RETRY_LAST_FAILED_AT, TIME_DIGITS),
        most_times=number_of(ours, RETRY_MOST_TIMES, COUNT_DIGITS),
        order=order_of(ours),
        behind=is_behind(ours),
    )


def id_of(ours: dict[str, bytes]) -> str:
    """Return the origin id, from the present key or the old one.

    Raises ValueError unless its topic is the one in REAL_TOPIC.
    """
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
    """Return the number under `key`, 0 if the header is absent.

    Raises ValueError unless it has 1 to `digits` digits and fits Kafka's long.
    """
    value = ours.get(key)
    if value is None:
        return 0
    # `isdigit` of bytes accepts ASCII only, unlike that of text. On this hot path a pattern would cost twice as much.
    if len(value) <= digits and value.isdigit() and (number := int(value)) <= LARGEST_LONG:
        return number
    raise ValueError(refusal(key, ours, f"a number of 1 to {digits} digits"))


def order_of(ours: dict[str, bytes]) -> Order | None:
    """Return the place under RETRY_ORDER, None if the header is absent. Raises ValueError if it is malformed."""
    value = ours.get(RETRY_ORDER)
    if value is None:
        return None
    if (order := parse_order(value)) is None:
        raise ValueError(refusal(RETRY_ORDER, ours, "an offset, or an offset and a sequence number"))
    return order


def is_behind(ours: dict[str, bytes]) -> bool:
    """Return whether RETRY_BEHIND is there. Raises ValueError unless it is `1`."""
    if RETRY_BEHIND in ours and ours[RETRY_BEHIND] != BEHIND:
        raise ValueError(refusal(RETRY_BEHIND, ours, "1"))
    return RETRY_BEHIND in ours


def text_of(ours: dict[str, bytes], key: str) -> str:
    """Return the text under `key`, empty if the header is absent. Raises ValueError unless it is UTF-8."""
    try:
        return ours.get(key, b"").decode()
    except UnicodeDecodeError:
        raise ValueError(refusal(key, ours, "UTF-8")) from None


def reason_of(ours: dict[str, bytes]) -> str:
    """Return the last failure's reason with unprintable characters replaced. Raises ValueError above 1 KiB.

    They must be replaced, because services in relay mode write the reason too.
    """
    if len(ours.get(RETRY_REASON, b"")) > LONGEST_REASON:
        raise ValueError(f"{RETRY_REASON} is longer than {LONGEST_REASON} bytes")
    return shortened(text_of(ours, RETRY_REASON))


def refusal(key: str, ours: dict[str, bytes], form: str) -> str:
    """Return a sentence about a malformed or missing header. The value is shortened and in ASCII, for logs."""
    return f"{key} is {ours[key][:60]!r}, not {form}" if key in ours else f"{key} is missing"


def render_retry_headers(retry_state: RetryState, group: str, retry_topic: str) -> Headers:
    """Return our headers for a copy that is written to `retry_topic`.

    `parse_retry_headers` reads the same retry state from them, with counts up to LARGEST_COUNT.
    """
    # Those that not every copy has are before the others, where an older reader looks for headers of later versions.
    headers = _rare_headers(retry_state)
    headers += (
        (REAL_TOPIC, retry_state.topic.encode()),
        (ORIGIN_MESSAGE_ID, retry_state.id.encode()),
        (RETRY_TOPIC, retry_topic.encode()),
        (RECONSUMETIMES, b"%d" % min(retry_state.times, LARGEST_COUNT)),
        (RETRY_REDRIVES, b"%d" % min(retry_state.redrives, LARGEST_COUNT)),
        (RETRY_DUE_AT, b"%d" % retry_state.due_at),
        # Kafka gives −1 for a record without a timestamp. 0 also means "none", and has the strict form.
        (RETRY_REAL_TIMESTAMP, b"%d" % max(retry_state.timestamp, 0)),
        (RETRY_FIRST_FAILED_AT, b"%d" % retry_state.first_failed_at),
        (RETRY_REASON, retry_state.reason.encode()),
        (RETRY_GROUP, group.encode()),
    )
    return headers


def _rare_headers(retry_state: RetryState) -> Headers:
    """Return our headers that not every copy has."""
    rare: Headers = []
    if retry_state.order is not None:
        rare.append((RETRY_ORDER, render_order(retry_state.order)))
    if retry_state.behind:
        rare.append((RETRY_BEHIND, BEHIND))
    if retry_state.postponed_at:
        rare.append((RETRY_POSTPONED_AT, b"%d" % retry_state.postponed_at))
    if retry_state.most_times:
        rare.append((RETRY_MOST_TIMES, b"%d" % min(retry_state.most_times, LARGEST_COUNT)))
    if retry_state.last_failed_at not in (0, retry_state.first_failed_at):  # most records fail once
        rare.append((RETRY_LAST_FAILED_AT, b"%d" % retry_state.last_failed_at))
    return rare


def without_ours(headers: Headers) -> Headers:
    """Return the record's own headers, with order, duplicates and nulls, without ours and those of KIP-1191."""
    return [header for header in headers if header[0] not in DROPPED]


def attempt_before(headers: Headers) -> bytes | None:
    """Return the trace context of the previous attempt. None if there is none in its strict form."""
    values = (value for name, value in headers if name == RETRY_TRACEPARENT)
    return next((value for value in values if value is not None and TRACEPARENT.fullmatch(value)), None)


def dead_letter_headers(retry_state: RetryState, group: str, deliveries: int) -> Headers:
    """Return the six `__dlq.errors.*` headers of KIP-1191. Topic, partition and offset are those of the first copy."""
    topic, partition, offset = retry_state.id.rsplit(":", 2)
    return [
        (DLQ_TOPIC, topic.encode()),
        (DLQ_PARTITION, partition.encode()),
        (DLQ_OFFSET, offset.encode()),
        (DLQ_GROUP, group.encode()),
        (DLQ_DELIVERY_COUNT, b"%d" % deliveries),
        (DLQ_MESSAGE, retry_state.reason.encode()),
    ]


EDITED = "RETRY_EDITED"
"""The audit header of a dead letter that was changed by hand. It is JSON with who, at (epoch ms), and the SHA-256 of
the old and the new value. It stays with the record like its own headers. A second edit adds a second one."""
