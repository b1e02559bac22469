"""Rows of the view, as a Spark job writes them, and the records that hold them."""

from __future__ import annotations

import time
from typing import Any

from reconsume.topics.events import State
from reconsume.topics.view_record import ViewRow, encode_row
from tests.support.kafka.topic_io import Out

GROUP = "billing"


def wall() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


def view_row(number: int = 1, state: State = State.WAITING_RETRY, /, **changes: Any) -> ViewRow:
    """The present state of record `number` of the topic orders, which failed just now."""
    at = wall()
    fields: dict[str, Any] = {
        "group": GROUP,
        "id": f"orders:0:{number}",
        "state": state,
        "times": 1,
        "redrives": 0,
        "level": "10s" if state is State.WAITING_RETRY else None,
        "due": at + 10_000 if state is State.WAITING_RETRY else 0,
        "at": at,
        "reason": "http-500",
        "topic": "orders",
        "partition": 0,
        "offset": number,
        "timestamp": at - 1_000,
        "first_failed_at": at,
        "instance": "pod-0",
        "last_failed_at": at,
        "retries": 1,
        "updated_at": at + 500,
    }
    return ViewRow(**{**fields, **changes})


def out(row: ViewRow) -> Out:
    """The record that holds a row."""
    return Out(encode_row(row), row.id.encode())


HOSTILE = (
    Out(b"not json", b"orders:0:1"),
    Out(b"", b"orders:0:1"),
    Out(b"null", b"orders:0:1"),
    Out(b"[" * 100_000, b"orders:0:1"),
    Out(b'{"later": ' + b"[" * 10_000, b"orders:0:1"),
    Out(b"{" + b" " * 900_000 + b"}", b"orders:0:1"),
    Out(b"{}", None),
    Out(b"{}", b""),
    Out(b"{}", b"\xff\xfe"),
    Out(b"{}", b"k" * 5_000),
    Out(None, None),
)
"""Records that are neither rows nor events, whichever topic they are in."""
