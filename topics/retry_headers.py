"""The headers that Reconsume adds to a Kafka record, and their parser (contract 3.5, 3.6).

`render_headers.py` writes them. Those of a dead letter beside them are in `dead_letter_headers.py`.

Headers are untrusted. On a main topic ours are ignored. On our own topics each has one strict form; a malformed header
gives a value that says why, never an exception. Numbers are checked as bytes, because `int()` alone would also accept
`-1`, `1_0` and the digits of every script. The record's own headers pass through unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TypeAlias

import msgspec

from reconsume.topics.reasons import LONGEST_REASON, shortened
from reconsume.topics.retry_order import (
    BEHIND,
    NONCE,
    PARKED,
    RETRY_BEHIND,
    RETRY_ORDER,
    RETRY_PARKED,
    RETRY_SETTLED,
    Order,
    parse_order,
)

Headers: TypeAlias = list[tuple[str, bytes | None]]
"""All headers of a record in their order, with duplicates. A null value (None) is not an empty one."""

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RETRY_TOPIC = "RETRY_TOPIC"
RECONSUMETIMES = "RECONSUMETIMES"
RETRY_REDRIVES = "RETRY_REDRIVES"
RETRY_CYCLE = "RETRY_CYCLE"
"""How often the position of the record's main partition was reset; absent where it never was."""
RETRY_DUE_AT = "RETRY_DUE_AT"
RETRY_REAL_TIMESTAMP = "RETRY_REAL_TIMESTAMP"
RETRY_FIRST_FAILED_AT = "RETRY_FIRST_FAILED_AT"
RETRY_REASON = "RETRY_REASON"
RETRY_GROUP = "RETRY_GROUP"
RETRY_POSTPONED_AT = "RETRY_POSTPONED_AT"
"""When the service postponed the record first since its last failure, epoch ms; only on a copy that waits for that."""
RETRY_LAST_FAILED_AT = "RETRY_LAST_FAILED_AT"
"""When the record failed last, epoch ms. Absent where that is the first failure."""
RETRY_MOST_TIMES = "RETRY_MOST_TIMES"
"""The most retries of the record in a life before its last redrive; only on copies of redriven records."""
RETRY_EXPIRES_AT = "RETRY_EXPIRES_AT"
"""After which time the record is not due again, epoch ms, as its service said. A redrive drops it."""
RETRY_DRAINED = "RETRY_DRAINED"
"""The topic of ORIGIN_MESSAGE_ID where that is not REAL_TOPIC, into which it was drained. Only so may they differ."""

OURS: frozenset[str] = frozenset(
    {
        REAL_TOPIC,
        ORIGIN_MESSAGE_ID,
        RETRY_TOPIC,
        RECONSUMETIMES,
        RETRY_REDRIVES,
        RETRY_CYCLE,
        RETRY_DUE_AT,
        RETRY_REAL_TIMESTAMP,
        RETRY_FIRST_FAILED_AT,
        RETRY_REASON,
        RETRY_GROUP,
        RETRY_POSTPONED_AT,
        RETRY_LAST_FAILED_AT,
        RETRY_MOST_TIMES,
        RETRY_EXPIRES_AT,
        RETRY_DRAINED,
        RETRY_ORDER,
        RETRY_BEHIND,
        RETRY_PARKED,
        RETRY_SETTLED,
    }
)

MOST_HEADERS = 100_000
"""Headers of a record that Kafka's client reads (librdkafka 2.16). It tells none of a record with more of them, as if
there were none."""
MOST_OF_OURS = 32
"""Headers that a copy has in addition to those of the record, at most."""
RETRY_HEADERS_DROPPED = "RETRY_HEADERS_DROPPED"
"""On a copy without the record's own headers, because ours had no room next to them: how many they were. It stays with
the record like its own headers."""
RESERVED = "RETRY_"
"""The prefix of headers that a later version may add. Such a header is kept like the record's own and is never refused.
That version then finds it again after this one."""


LARGEST_PARTITION = 2**31 - 1
LARGEST_LONG = 2**63 - 1
COUNT_DIGITS = 6
LARGEST_COUNT = 10**COUNT_DIGITS - 1
"""The largest RECONSUMETIMES, RETRY_REDRIVES and RETRY_CYCLE. A count stays there: with one digit more the strict form
would refuse the record for ever, and an ordered group can try a record a million times in place."""
TIME_DIGITS = 16
# A producer may stamp nanoseconds on a main topic. That is no reason to refuse our own copy.
TIMESTAMP_DIGITS = 19
# No leading zeros: one record must not have two ids.
ID = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})")


class RetryState(msgspec.Struct, frozen=True, gc=False):
    """The retry state in our headers: the record's id, its retries, when it is due. Times are epoch ms.

    `last_failed_at`: 0 in a copy that was read if it is `first_failed_at`. `most_times`: the
    most retries in an earlier life; 0 without a redrive. `expires_at`: 0 if its service said nothing. `order`: its
    place among the records of its key, on copies in a queue topic. `behind`: it only waits behind an earlier one there.
    `parked`: its retries are used up, and it waits there for a person. `settled`: the id of the decision that was
    carried out on it last; empty without one. `cycle`: how often the position of its main partition was reset.
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
    expires_at: int = 0
    order: Order | None = None
    behind: bool = False
    parked: bool = False
    settled: str = ""
    cycle: int = 0


class BadHeader(msgspec.Struct, frozen=True):
    """The reason why a record's headers are refused, as one sentence for people."""

    text: str


def capped(count: int) -> int:
    """Return a count as it is written: at most LARGEST_COUNT."""
    return count if count <= LARGEST_COUNT else LARGEST_COUNT


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
        expires_at=number_of(ours, RETRY_EXPIRES_AT, TIME_DIGITS),
        order=order_of(ours),
        behind=has_mark(ours, RETRY_BEHIND, BEHIND),
        parked=has_mark(ours, RETRY_PARKED, PARKED),
        settled=settled_of(ours),
        cycle=number_of(ours, RETRY_CYCLE, COUNT_DIGITS),
    )


def id_of(ours: dict[str, bytes]) -> str:
    """Return the origin id. Raises ValueError unless its topic is the one in REAL_TOPIC, or the one in RETRY_DRAINED.

    The copy says itself that its topic was drained: an instance that does not know of it yet, or any more, reads it.
    """
    key = ORIGIN_MESSAGE_ID
    if key not in ours:
        raise ValueError(f"{key} is missing")
    match = ID.fullmatch(ours[key])
    if match is None or int(match[2]) > LARGEST_PARTITION or int(match[3]) > LARGEST_LONG:
        raise ValueError(refusal(key, ours, "topic:partition:offset"))
    if RETRY_DRAINED in ours and ours[RETRY_DRAINED] == ours[REAL_TOPIC]:
        raise ValueError(refusal(RETRY_DRAINED, ours, f"another topic than {REAL_TOPIC}"))
    named_by = RETRY_DRAINED if RETRY_DRAINED in ours else REAL_TOPIC
    if match[1] != ours[named_by]:
        raise ValueError(refusal(key, ours, f"of the topic that {named_by} names"))
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
    """Return the order under RETRY_ORDER, None if the header is absent. Raises ValueError if it is malformed."""
    value = ours.get(RETRY_ORDER)
    if value is None:
        return None
    if (order := parse_order(value)) is None:
        raise ValueError(refusal(RETRY_ORDER, ours, "an offset, or an offset and a sequence number"))
    return order


def has_mark(ours: dict[str, bytes], key: str, mark: bytes) -> bool:
    """Return whether a header is there. Raises ValueError unless it is the `mark`."""
    if key in ours and ours[key] != mark:
        raise ValueError(refusal(key, ours, mark.decode()))
    return key in ours


def settled_of(ours: dict[str, bytes]) -> str:
    """Return the nonce under RETRY_SETTLED, empty if the header is absent. Raises ValueError if it is malformed."""
    nonce = text_of(ours, RETRY_SETTLED)
    if RETRY_SETTLED in ours and NONCE.fullmatch(nonce) is None:
        raise ValueError(refusal(RETRY_SETTLED, ours, "a nonce"))
    return nonce


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
