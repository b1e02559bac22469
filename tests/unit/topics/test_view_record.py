"""The view's records: what is written is read back, what is hostile is a value, and order decides, never arrival."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.events import Event, State, encode_event, order
from reconsume.topics.view_record import (
    LARGEST,
    BadRow,
    Forgotten,
    StatsRow,
    decode_view,
    encode_row,
    view_order,
)
from tests.support.kafka.topic_io import Out
from tests.support.view_rows import GROUP, HOSTILE, view_row

ROW = view_row()
SUMS = StatsRow(GROUP, 1_763_690_040_000, "orders", "10s", "http-500", 12, 3, 0, 1)


def changed(row: Any, **fields: object) -> bytes:
    return json.dumps({**json.loads(encode_row(row)), **fields}).encode()


def test_a_row_is_the_json_of_the_interface_and_is_read_back() -> None:
    fields = json.loads(encode_row(ROW))
    event = json.loads(encode_event(Event(**{name: getattr(ROW, name) for name in Event.__struct_fields__})))
    assert fields == {**event, "last_failed_at": ROW.last_failed_at, "retries": 1, "updated_at": ROW.updated_at}
    assert decode_view(GROUP, ROW.id.encode(), encode_row(ROW)) == ROW


def test_sums_are_the_json_of_the_interface() -> None:
    assert set(json.loads(encode_row(SUMS))) == {
        "v", "group", "minute", "topic", "level", "reason", "waiting", "committed", "dead", "redriven",
    }  # fmt: skip


def test_a_tombstone_forgets_its_key() -> None:
    assert decode_view(GROUP, b"orders:0:1", None) == Forgotten("orders:0:1")


def test_unknown_fields_are_ignored_and_do_not_come_back() -> None:
    read = decode_view(GROUP, ROW.id.encode(), changed(ROW, later={"deep": [1]}))
    assert read == ROW


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2},
        {"group": "other"},
        {"id": "orders:0:2"},
        {"state": "SLEEPING"},
        {"times": -1},
        {"times": "1"},
        {"at": 2**63},
        {"level": 10},
        {"updated_at": None},
        {"retries": 1.5},
        {"last_failed_at": -1},
        {"reason": "x" * LARGEST},
    ],
    ids=str,
)
def test_a_row_that_is_not_as_agreed_is_a_value_that_says_why(fields: dict[str, object]) -> None:
    bad = decode_view(GROUP, ROW.id.encode(), changed(ROW, **fields))
    assert isinstance(bad, BadRow)
    assert 0 < len(bad.text) <= 300


@pytest.mark.parametrize("record", HOSTILE, ids=lambda record: repr((record.key, record.value))[:30])
def test_what_is_no_record_of_ours_never_raises(record: Out) -> None:
    assert isinstance(decode_view(GROUP, record.key, record.value), BadRow)


@given(st.none() | st.binary(max_size=50), st.binary(max_size=200) | st.text().map(lambda text: text.encode()))
def test_no_bytes_raise(key: bytes | None, value: bytes) -> None:
    assert isinstance(decode_view(GROUP, key, value), BadRow)


def test_the_order_is_that_of_events_then_when_it_was_written() -> None:
    later = view_row(1, State.COMMIT, at=ROW.at, updated_at=ROW.updated_at - 1)
    assert view_order(later) > view_order(ROW)
    again = view_row(1, at=ROW.at, updated_at=ROW.updated_at + 1)
    assert view_order(again) > view_order(ROW)
    assert view_order(ROW)[0] == order(ROW)
