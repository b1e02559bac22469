"""Parse the numbers, names and ids in the retry headers of other systems: one strict form for each.

Pure. A form turns bytes into a value or None, and never raises. `foreign_headers.py` gives the values their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container

import msgspec

from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, TIMESTAMP_DIGITS

LARGEST_ATTEMPT = 32_767
"""Spring's own limit (ATTEMPTS_HARD_CAP). Spring treats a larger number as forged."""
LONGEST_TEXT = 1_024

TOPIC_NAME = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
PULSAR_ID = re.compile(rb"[0-9]{1,19}(:-?[0-9]{1,19}){2,3}")


class Form(msgspec.Struct, frozen=True):
    """The form of a value. `read` returns None for everything else, and never raises; `text` is for people."""

    text: str
    read: Callable[[bytes], int | str | None]


def decimal(data: bytes) -> int | None:
    """Return the number that ASCII digits without a sign give. None if it does not fit Kafka's long."""
    # `isdigit` of bytes accepts ASCII only. `int()` alone would also accept `-1`, `1_0` and the digits of every script.
    if len(data) > TIMESTAMP_DIGITS or not data.isdigit():
        return None
    number = int(data)
    return number if number <= LARGEST_LONG else None


def big_endian(data: bytes, sizes: Container[int], largest: int) -> int | None:
    """Return a signed big-endian number in one of `sizes` bytes. None if it is negative or above `largest`.

    Java's ByteBuffer and BigInteger write this form.
    """
    if len(data) not in sizes:
        return None
    number = int.from_bytes(data, signed=True)
    return number if 0 <= number <= largest else None


def attempts(data: bytes) -> int | None:
    """Return the retries before this delivery, from Spring's number of the coming delivery.

    Older versions of Spring wrote one unsigned byte.
    """
    number = data[0] if len(data) == 1 else big_endian(data, (4,), LARGEST_ATTEMPT)
    return None if number is None or number < 1 else number - 1


def count_before(data: bytes) -> int | None:
    """Return SmallRye's count plus 1, because this delivery is one more retry.

    SmallRye raises the count only when it reads the record back.
    """
    number = decimal(data)
    return None if number is None else number + 1


def partition_number(data: bytes) -> int | None:
    """Return the partition that digits give."""
    number = decimal(data)
    return number if number is not None and number <= LARGEST_PARTITION else None


def topic_name(data: bytes) -> str | None:
    """Return a topic name that Kafka accepts."""
    return data.decode("ascii") if TOPIC_NAME.fullmatch(data) is not None else None


def pulsar_id(data: bytes) -> str | None:
    """Return Pulsar's `ledger:entry:partition`, with or without the position in a batch."""
    return data.decode("ascii") if PULSAR_ID.fullmatch(data) is not None else None


def text(data: bytes) -> str | None:
    """Return printable UTF-8 of at most 1 KiB, not empty."""
    try:
        decoded = data.decode() if len(data) <= LONGEST_TEXT else ""
    except UnicodeDecodeError:
        return None
    return decoded if decoded and decoded.isprintable() else None


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
