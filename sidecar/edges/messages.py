"""From the client's message to our record: the one place that touches a message's headers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

from confluent_kafka import Message

from sidecar.core.record import Partition, Record, weight_of
from topics.headers import Headers, Life

read_headers: Callable[[Message], Headers | None] = operator.methodcaller("headers")
"""The only way to a message's headers, called once a message.

On a header key that is not UTF-8 the client raises. A plain `message.headers()` in hot code escapes its own `try` on
Python 3.11–3.13 (the specialised call skips the check) and ends in a segmentation fault; so does a second call.
"""

Reading: TypeAlias = Callable[[Headers, Partition, int, int], tuple[Life | None, str]]
"""From headers, partition, offset and timestamp (epoch ms) to the life that they tell of, and why they may not be
believed (empty: they may)."""

UNREADABLE = "headers-unreadable"


def to_record(message: Message, source: Partition, epoch: int, reading: Reading | None) -> Record:
    """The message as a record. `reading` is None where no header means anything: on a main topic, as a rule."""
    headers: Headers | None
    life, fault = None, ""
    try:
        headers = read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        headers, fault = None, UNREADABLE
    offset, timestamp = message.offset(), message.timestamp()[1]
    assert offset is not None  # a consumed message has one
    if reading is not None and headers is not None:
        life, fault = reading(headers, source, offset, timestamp)
    key, value = message.key(), message.value()
    weight = weight_of(key, value, headers, life)
    return Record(source, offset, epoch, timestamp, key, value, headers, life, fault, weight)
