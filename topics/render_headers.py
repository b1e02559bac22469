"""Write the headers that Reconsume adds to a copy, and leave out those that it had (contract 3.5)."""

from __future__ import annotations

import functools
import re

from msgspec.structs import replace

from reconsume.topics.dead_letter_headers import DEAD_LETTER
from reconsume.topics.retry_headers import (
    LARGEST_COUNT,
    ORIGIN_MESSAGE_ID,
    OURS,
    REAL_TOPIC,
    RECONSUMETIMES,
    RETRY_CYCLE,
    RETRY_DRAINED,
    RETRY_DUE_AT,
    RETRY_EXPIRES_AT,
    RETRY_FIRST_FAILED_AT,
    RETRY_GROUP,
    RETRY_LAST_FAILED_AT,
    RETRY_MOST_TIMES,
    RETRY_POSTPONED_AT,
    RETRY_REAL_TIMESTAMP,
    RETRY_REASON,
    RETRY_REDRIVES,
    RETRY_TOPIC,
    Headers,
    RetryState,
    capped,
)
from reconsume.topics.retry_order import (
    BEHIND,
    PARKED,
    RETRY_BEHIND,
    RETRY_ORDER,
    RETRY_PARKED,
    RETRY_SETTLED,
    render_order,
)

RETRY_TRACEPARENT = "RETRY_TRACEPARENT"
"""The trace context of the previous attempt, in the form of W3C's `traceparent`. It is there only if attempts are
traced. The record's own `traceparent` stays that of its producer."""
TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

IS_BEHIND = RETRY_BEHIND, BEHIND
DROPPED = OURS | DEAD_LETTER | {RETRY_TRACEPARENT}


def render_retry_headers(retry_state: RetryState, group: str, retry_topic: str) -> Headers:
    """Return our headers for a copy that is written to `retry_topic`.

    `parse_retry_headers` reads the same retry state from them, with counts up to LARGEST_COUNT.
    """
    # Those that not every copy has are before the others, where a reader looks for headers of later versions.
    headers = _rare_headers(retry_state)
    if (source := retry_state.id.partition(":")[0]) != retry_state.topic:
        headers.append(_name(RETRY_DRAINED, source))
    headers += (
        _name(REAL_TOPIC, retry_state.topic),
        (ORIGIN_MESSAGE_ID, retry_state.id.encode()),
        _name(RETRY_TOPIC, retry_topic),
        _count(RECONSUMETIMES, retry_state.times),
        _count(RETRY_REDRIVES, retry_state.redrives),
        (RETRY_DUE_AT, b"%d" % retry_state.due_at),
        # Kafka gives −1 for a record without a timestamp. 0 also means "none", and has the strict form.
        (RETRY_REAL_TIMESTAMP, b"%d" % max(retry_state.timestamp, 0)),
        (RETRY_FIRST_FAILED_AT, b"%d" % retry_state.first_failed_at),
        _reason(retry_state.reason),
        _name(RETRY_GROUP, group),
    )
    return headers


# Thousands of copies wait for a transaction, and most of their headers are the same. To make each of them anew took a
# third of a copy's memory, and more time than to look it up.


@functools.lru_cache(maxsize=1024)
def _name(header: str, name: str) -> tuple[str, bytes]:
    return header, name.encode()


@functools.lru_cache(maxsize=256)
def _count(header: str, count: int) -> tuple[str, bytes]:
    return header, b"%d" % capped(count)


@functools.lru_cache(maxsize=256)  # a service fails often, and in few ways
def _reason(reason: str) -> tuple[str, bytes]:
    return RETRY_REASON, reason.encode()


def as_read(retry_state: RetryState) -> RetryState:
    """Return the retry state that `parse_retry_headers` reads from the headers of `render_retry_headers`."""
    known = retry_state.last_failed_at != retry_state.first_failed_at
    counts = max(retry_state.times, retry_state.redrives, retry_state.most_times, retry_state.cycle)
    if counts <= LARGEST_COUNT and retry_state.timestamp >= 0:  # all that a running group writes
        return retry_state if known else replace(retry_state, last_failed_at=0)
    return replace(
        retry_state,
        times=capped(retry_state.times),
        redrives=capped(retry_state.redrives),
        timestamp=max(retry_state.timestamp, 0),
        last_failed_at=retry_state.last_failed_at if known else 0,
        most_times=capped(retry_state.most_times),
        cycle=capped(retry_state.cycle),
    )


def _rare_headers(retry_state: RetryState) -> Headers:
    """Return our headers that not every copy has."""
    rare: Headers = []
    if retry_state.order is not None:
        rare.append((RETRY_ORDER, render_order(retry_state.order)))
    if retry_state.behind:
        rare.append(IS_BEHIND)
    if retry_state.parked:
        rare.append((RETRY_PARKED, PARKED))
    if retry_state.settled:
        rare.append((RETRY_SETTLED, retry_state.settled.encode()))
    if retry_state.postponed_at:
        rare.append((RETRY_POSTPONED_AT, b"%d" % retry_state.postponed_at))
    if retry_state.most_times:
        rare.append((RETRY_MOST_TIMES, b"%d" % capped(retry_state.most_times)))
    if retry_state.cycle:
        rare.append(_count(RETRY_CYCLE, retry_state.cycle))
    if retry_state.expires_at:
        rare.append((RETRY_EXPIRES_AT, b"%d" % retry_state.expires_at))
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
