"""How deep a value is, before anything parses it: also where it is no JSON, and for any bytes in short time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.events import BadEvent, decode_event
from reconsume.topics.json_bounds import DEEPEST, excess, nests_beyond
from reconsume.topics.view_record import BadRow, decode_view

LISTS: st.SearchStrategy[Any] = st.recursive(
    st.text('"\\[]{}a'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\[{'), inner, max_size=3),
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(LISTS, st.integers(0, 6))
def test_the_depth_is_that_of_the_parsed_value_whatever_its_texts_hold(value: Any, most: int) -> None:
    assert nests_beyond(json.dumps(value).encode(), most) is (depth(value) > most)


@pytest.mark.parametrize("value", [b"[" * 65_536, b'{"a":' * 13_000, b'"' + b'\\"' * 32_000, b'\\"[' * 20_000])
def test_broken_values_are_looked_at_once(value: bytes) -> None:
    begun = time.process_time()
    nests_beyond(value, DEEPEST)
    assert time.process_time() - begun < 1.0


def test_no_record_of_any_topic_is_parsed_beyond_the_bounds() -> None:
    """Given an event, a row and sums with an unknown field five deep or too long, then each says why it is not read."""
    for value, why in (
        (b'{"x":[[[[1]]]]}', "nested deeper than 4 levels"),
        (b'"' + b"x" * 70_000, "bytes, and at most"),
    ):
        assert why in excess(value, 65_536)
        event, row = decode_event(value), decode_view("g", b"k", value)
        assert isinstance(event, BadEvent)
        assert isinstance(row, BadRow)
        assert all(why in bad.text for bad in (event, row))
