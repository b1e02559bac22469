"""Turn the client's message into our record: the only module that reads a message's headers."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

from confluent_kafka import Message
from msgspec.structs import replace

from reconsume.sidecar.clock import now, wall
from reconsume.sidecar.core.counters import MOST_STRAYS
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.topics.foreign_headers import foreign_life, read_foreign
from reconsume.topics.headers_fast import RETRY_TOPIC_AT, parse_rendered
from reconsume.topics.other_group_headers import kept_originals
from reconsume.topics.retry_headers import RETRY_TOPIC, BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.transitions import UNREADABLE

read_headers: Callable[[Message], Headers | None] = operator.methodcaller("headers")
"""The only way to read a message's headers; call it once for each message.

The client raises if a header key is not UTF-8. In hot code a plain `message.headers()` escapes its own `try` on Python
3.11–3.13 (the specialised call skips the check). It then ends in a segmentation fault; so does a second call."""

Reading: TypeAlias = Callable[[Headers, Partition, int, int], tuple[RetryState | None, str]]
"""A function of headers, partition, offset and timestamp (epoch ms). It returns the retry state in the headers, and why
they may not be trusted (empty: they may). That of main topics renames those under our names, in the list itself."""

_LOG = logging.getLogger("reconsume.lane")


def to_record(message: Message, source: Partition, epoch: int, reading: Reading | None) -> Record:
    """Return the message as a record.

    `reading` is None where no header has a meaning, as on most main topics.
    """
    headers: Headers | None
    retry_state, fault = None, ""
    try:
        headers = read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        headers, fault = None, UNREADABLE
    offset, timestamp = message.offset(), message.timestamp()[1]
    if timestamp < 0:  # −1: none; or before 1970. A copy has no other form for it than 0
        timestamp = 0
    assert offset is not None  # a consumed message has one
    if reading is not None:
        retry_state, why = reading(headers or [], source, offset, timestamp)
        fault = fault or why
    key, value = message.key(), message.value()
    weight = weight_of(key, value, headers, retry_state)
    return Record(source, offset, epoch, timestamp, key, value, headers, retry_state, fault, weight)


def reading_of(policy: Policy) -> Reading:
    """Return the function that reads our headers on the group's own topics.

    It logs each main topic that only other instances consume once, MOST_STRAYS of them at most.
    """
    named = set[str]()

    def read(headers: Headers, source: Partition, _offset: int, _timestamp: int) -> tuple[RetryState | None, str]:
        latest_due = policy.latest_due(wall())
        retry_state = parse_rendered(headers, policy.topics, latest_due)
        if retry_state is not None and headers[RETRY_TOPIC_AT][1] == source.topic.encode():
            return retry_state, ""
        parsed = parse_retry_headers(headers, policy, latest_due)
        if isinstance(parsed, BadHeader):
            return None, f"bad-header: {parsed.text}"
        if elsewhere := elsewhere_of(headers, source.topic):
            return None, f"bad-header: {elsewhere}"
        if parsed.topic not in policy.topics and parsed.topic not in named and len(named) < MOST_STRAYS:
            named.add(parsed.topic)
            name_stray(parsed.topic, source)
        return parsed, ""

    return read


def elsewhere_of(headers: Headers, here: str) -> str:
    """Return one sentence if a copy was written to another topic and brought here, as by a mirror that renames topics;
    empty if not."""
    there = next((value or b"" for name, value in headers if name == RETRY_TOPIC), b"").decode(errors="replace")
    return "" if there == here else f"{RETRY_TOPIC} is {there[:249]!r}, and the copy lies in {here}"


def main_reading_of(understand: tuple[str, ...], drains: Mapping[str, str]) -> Reading | None:
    """Return the function that reads main topics: `understand` names the systems whose retry headers count.

    `drains`: the main topic of each drained topic. None, which costs nothing, if no header and no topic has a meaning.
    """
    if not understand and not drains:
        return None

    def read(headers: Headers, source: Partition, offset: int, timestamp: int) -> tuple[RetryState | None, str]:
        foreign = read_foreign(headers, understand)
        state = None if foreign is None else foreign_life(foreign, (*source, offset), timestamp, now().wall_ms)
        if (topic := drains.get(source.topic)) is not None:
            begun = state or RetryState(f"{source.topic}:{source.number}:{offset}", topic, timestamp=timestamp)
            state = replace(begun, topic=topic)
        if state is not None:  # from here on it is like a copy, of which the headers under our names are ours
            headers[:] = kept_originals(headers)
        return state, ""

    return read


def name_stray(topic: str, source: Partition) -> None:
    """Log a topic whose retries arrive here although this instance does not consume it."""
    text = "retries of topic %s are in %s, and this instance does not consume that topic: it passes them on"
    _LOG.warning(text, topic, source.topic, extra={"event": "unknown-topic", "topic": topic})


def queue_reading_of(policy: Callable[[], Policy]) -> Reading:
    """Return the function that reads our headers in a queue: those that belong elsewhere are refused."""

    by: tuple[Policy | None, Reading] = None, reading_of(policy())

    def read(headers: Headers, source: Partition, offset: int, timestamp: int) -> tuple[RetryState | None, str]:
        nonlocal by
        rules = policy()
        if by[0] is not rules:
            by = rules, reading_of(rules)
        state, fault = by[1](headers, source, offset, timestamp)
        if state is not None and (why := rules.queue_fault(source, state)):
            return None, f"bad-header: {why}"
        return state, fault

    return read
