"""Durations: one canonical spelling, read back exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.durations import UNITS, parse_duration, render_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("500ms", 500),
        ("10s", 10_000),
        ("1m", 60_000),
        ("1m30s", 90_000),
        ("1h", 3_600_000),
        ("1h30m", 5_400_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1d2h3m4s5ms", 93_784_005),
    ],
)
def test_a_duration_is_read_and_written_the_same_way(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert render_duration(ms) == text


@pytest.mark.parametrize(("text", "canonical"), [("90s", "1m30s"), ("60m", "1h"), ("07s", "7s"), ("1000ms", "1s")])
def test_other_spellings_are_read_and_written_canonically(text: str, canonical: str) -> None:
    assert render_duration(parse_duration(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "1 s",
        " 1s",
        "1s ",
        "1s\n",
        "1S",
        "30m1h",
        "1s1s",
        "1w",
        "１０s",
        "1_0s",
        "9" * 11 + "s",
    ],
)
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write it like"):
        parse_duration(text)


def test_a_negative_duration_has_no_spelling() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        render_duration(-1)


@given(st.integers(0, 10**12))
def test_every_duration_comes_back(ms: int) -> None:
    assert parse_duration(render_duration(ms)) == ms


@given(st.text(alphabet="0123456789dhms １-.", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        ms = parse_duration(text)
    except ValueError:
        return
    assert text[0] in "0123456789"
    assert text.endswith(tuple(unit for unit, _ in UNITS))
    assert parse_duration(render_duration(ms)) == ms
