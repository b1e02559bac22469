"""Rates as text have one spelling, and nothing else is one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.rates import MOST, PATTERN, UNITS, Rate, parse_rate, render_rate


@given(st.integers(1, MOST), st.sampled_from(sorted(UNITS)))
def test_what_is_written_is_read_back(count: int, unit: str) -> None:
    text = f"{count}/{unit}"
    rate = parse_rate(text)
    assert (rate, render_rate(rate)) == (Rate(count, UNITS[unit]), text)
    assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "5", "0/s", "-1/s", "1.5/s", "1/d", "1 /s", "1/s ", "1/S", "01/s", f"{MOST + 1}/s", "٣/s", "1/s\n"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


def test_a_part_of_a_rate_has_no_spelling() -> None:
    with pytest.raises(ValueError, match="7000 ms"):
        render_rate(Rate(1, 7_000))


@pytest.mark.parametrize(("text", "per_second"), [("100/s", 100), ("600/m", 10), ("36/h", 0.01)])
def test_the_rate_a_second(text: str, per_second: float) -> None:
    assert parse_rate(text).per_second == per_second
