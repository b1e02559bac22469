"""Fast paths for headers as `render_retry_headers` writes them. Nearly every record on our topics has such headers.

`parse_retry_headers` decides what is valid. The usual case is recognised here, and everything else is left to
`parse_retry_headers`: as strict, and twice as fast.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from reconsume.topics.reasons import LONGEST_REASON, shortened
from reconsume.topics.retry_headers import (
    COUNT_DIGITS,
    ID,
    LARGEST_LONG,
    LARGEST_PARTITION,
    ORIGIN_MESSAGE_ID,
    OURS,
    REAL_TOPIC,
    RECONSUMETIMES,
    RETRY_DUE_AT,
    RETRY_FIRST_FAILED_AT,
    RETRY_GROUP,
    RETRY_LAST_FAILED_AT,
    RETRY_REAL_TIMESTAMP,
    RETRY_REASON,
    RETRY_REDRIVES,
    RETRY_TOPIC,
    TIME_DIGITS,
    TIMESTAMP_DIGITS,
    Headers,
    RetryState,
)
from reconsume.topics.retry_order import BEHIND, RETRY_BEHIND, RETRY_ORDER, Order, parse_order

RENDERED = (
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
)
"""The names in the order in which `render_retry_headers` writes them."""
RETRY_TOPIC_AT = RENDERED.index(RETRY_TOPIC) - len(RENDERED)
"""The index of RETRY_TOPIC, counted from the end."""
ZERO = ord("0")


def parse_rendered(headers: Headers, topics: Collection[str], latest_due: int) -> RetryState | None:
    """Return the retry state in headers as we write them: the last ten, in our order, after RETRY_LAST_FAILED_AT and
    what a queue adds.

    Each of the latter may be missing. None if `parse_retry_headers` must decide.
    """
    last, before = b"0", headers[:-10]
    if before and before[-1][0] == RETRY_LAST_FAILED_AT:
        last = before.pop()[1]  # type: ignore[assignment]  # as below
    order, behind = _order_of(before)
    for name, _ in before:
        if name in OURS:
            return None
    try:
        ours: list[tuple[str, bytes]] = headers[-10:]  # type: ignore[assignment]  # the error that a null raises is caught
        (
            (k0, topic),
            (k1, position),
            (k2, at),
            (k3, times),
            (k4, redrives),
            (k5, due),
            (k6, stamp),
            (k7, failed),
            (k8, reason),
            (k9, group),
        ) = ours
        source, _, offset = position.rpartition(b":")
        real_topic, due_at = _topic_of(source, topic), int(due)
        if (
            (k0, k1, k2, k3, k4, k5, k6, k7, k8, k9) == RENDERED
            and real_topic in topics
            and due_at <= latest_due
            and (offset + times + redrives + due + stamp + failed + last).isdigit()
            and (offset[0] != ZERO or len(offset) == 1)
            and len(times) <= COUNT_DIGITS >= len(redrives)
            and len(due) <= TIME_DIGITS >= len(failed)
            and len(last) <= TIME_DIGITS
            and len(stamp) <= TIMESTAMP_DIGITS >= len(offset)
            and (timestamp := int(stamp)) <= LARGEST_LONG >= int(offset)
            and at.isascii()
            and group.isascii()
        ):
            why, origin, first = _reason(reason), position.decode(), int(failed)
            return RetryState(
                origin,
                real_topic,
                int(times),
                int(redrives),
                due_at,
                timestamp,
                first,
                why,
                0,
                int(last),
                0,
                0,
                order,
                behind,
            )
    except (ValueError, TypeError, AttributeError, IndexError):
        return None
    return None


def _order_of(before: Headers) -> tuple[Order | None, bool]:
    """Take RETRY_BEHIND and RETRY_ORDER from the end of the headers; one that has another form stays there."""
    behind = bool(before) and before[-1] == (RETRY_BEHIND, BEHIND)
    at = -2 if behind else -1
    if len(before) < -at or before[at][0] != RETRY_ORDER:
        return None, False
    value = before[at][1]
    order = None if value is None else parse_order(value)
    if order is not None:
        del before[at:]
    return order, behind and order is not None


@functools.lru_cache(maxsize=4096)  # one for each partition of the group's topics
def _topic_of(source: bytes, topic: bytes) -> str:
    """Return the topic if `source` is `topic:partition` of it. Raises ValueError if it may not be."""
    name, _, partition = source.rpartition(b":")
    if name == topic and ID.fullmatch(source + b":0") is not None and int(partition) <= LARGEST_PARTITION:
        return topic.decode()
    raise ValueError


@functools.lru_cache(maxsize=256)  # a service fails often, and in few ways
def _reason(value: bytes) -> str:
    if len(value) > LONGEST_REASON:
        raise ValueError
    return shortened(value.decode())


def for_topic(headers: Headers, retry_topic: str) -> Headers:
    """Return headers for a copy to `retry_topic`. `parse_retry_headers` must have accepted them.

    Only RETRY_TOPIC changes. All other headers keep their values and their order.
    """
    here = (RETRY_TOPIC, retry_topic.encode())
    if len(headers) >= len(RENDERED) and headers[RETRY_TOPIC_AT][0] == RETRY_TOPIC:
        copy = headers.copy()
        copy[RETRY_TOPIC_AT] = here
        return copy
    return [*(header for header in headers if header[0] != RETRY_TOPIC), here]
