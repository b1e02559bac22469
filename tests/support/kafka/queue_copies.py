"""Copies as they lie in the queue topic of `orders`, for tests of what reads it."""

from __future__ import annotations

from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from tests.support.kafka.topic_io import Out
from tests.support.view_rows import wall

AT = wall() - 60_000
"""The timestamp (epoch ms) of the record at offset 0; each later one is 1 ms younger."""


def queue_copy(
    queue: str,
    key: bytes | None,
    origin: int,
    times: int = 0,
    number: int = 0,
    *,
    topic: str = "orders",
    parked: bool = False,
    due: int = AT + 100_000,
) -> Out:
    """A copy of the record at offset `origin` of a main partition: a failed one with `times`, else one behind it.

    A failed one is due `origin` ms after `due` (epoch ms).
    """
    state = RetryState(
        f"{topic}:{number}:{origin}",
        topic,
        times,
        due_at=0 if parked else due + origin if times else AT,
        timestamp=AT + origin,
        first_failed_at=AT if times else 0,
        reason="http-500: no" if times else "",
        order=Order(origin),
        behind=not times,
        parked=parked,
    )
    return Out(b"v", key, tuple(render_retry_headers(state, "g", queue)), number)
