"""Records of holds: what is obeyed comes back as it was written, and all else is a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold
from reconsume.topics.hold_record import (
    LONGEST_HOLD_MS,
    SELECTORS,
    HoldHeard,
    HoldRecord,
    fault_of_hold,
    hold_key,
    holds_record,
    lasts_too_long,
    render_hold,
)
from reconsume.topics.policy_record import BadRecord, parse_record

GOOD = HoldRecord(1_000, 2_000, "because", "ann", topic="orders")


@pytest.mark.parametrize(
    "record",
    [
        GOOD,
        HoldRecord(1_000, 2_000, "because", "ann", all=True),
        HoldRecord(1_000, 1_000 + LONGEST_HOLD_MS, "x", "", level="10m", key=b"\xff\x00"),
        HoldRecord(1_000, 2_000, "x", "ann", key=b"", released_by="bob", released_at=1_500),
    ],
)
def test_a_hold_comes_back_as_it_was_written(record: HoldRecord) -> None:
    assert parse_record(hold_key("a-1"), render_hold(record)) == HoldHeard("a-1", record)


@pytest.mark.parametrize("hold_type", [HoldRecord, Hold])
def test_a_hold_of_every_reader_has_each_selector_and_loses_none(hold_type: type[HoldRecord] | type[Hold]) -> None:
    """A selector that one of them forgot would hold too much: here what is held is chosen by all of them."""
    assert set(SELECTORS) <= set(hold_type.__struct_fields__)
    named = HoldRecord(1_000, 2_000, "because", "ann", topic="orders", level="10s", key=b"k").selectors
    assert set(named) == set(SELECTORS)
    obeyed = Hold("h", **named)
    assert {name: getattr(obeyed, name) for name in SELECTORS} == named


@pytest.mark.parametrize("other", SELECTORS)
def test_a_record_is_held_only_if_every_selector_of_the_hold_fits_it(other: str) -> None:
    named: dict[str, Any] = {"topic": "orders", "level": "10s", "key": b"k"}
    hold = HoldRecord(1_000, 2_000, "because", "ann", **named)
    assert holds_record(hold, **named)
    assert not holds_record(hold, **{**named, other: b"x" if other == "key" else "x"})
    assert holds_record(replace(hold, **{other: None}), **{**named, other: b"x" if other == "key" else "x"})


def test_a_deleted_hold_holds_nothing() -> None:
    assert parse_record(hold_key("a"), None) == HoldHeard("a", None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "a newer version of Reconsume wrote it"),
        ({"topic": None}, "must name a topic, a level, a key, or all"),
        ({"all": True}, "must name a topic, a level, a key, or all"),
        ({"until": 1_000}, "must end after it begins"),
        ({"until": 1_001 + LONGEST_HOLD_MS}, "last 7 d at most"),
        ({"until": None}, "not as agreed"),
        ({"why": ""}, "not as agreed"),
        ({"why": "a\nb"}, "cannot be printed"),
        ({"topic": "a\x1b[0m"}, "cannot be printed"),
        ({"key": "?"}, "not as agreed"),
        ({"key": "A" * 8_000}, "more than 4096 bytes"),
        ({"since": -1}, "not as agreed"),
        ({"until": 2**64}, "not as agreed"),
    ],
)
def test_what_is_no_hold_says_why(change: dict[str, object], why: str) -> None:
    value = json.loads(render_hold(GOOD)) | change
    heard = parse_record(hold_key("a"), json.dumps(value).encode())
    assert isinstance(heard, BadRecord)
    assert heard.text.startswith("hold a: ")
    assert why in heard.text


@pytest.mark.parametrize("ident", [b"", b"a b", b"\xff", b"x" * 65, b"a/b", "ä".encode()])
def test_an_id_is_a_short_plain_word(ident: bytes) -> None:
    heard = parse_record(b"hold/" + ident, render_hold(GOOD))
    assert isinstance(heard, BadRecord)
    assert "names no hold" in heard.text


def test_a_hold_of_another_clock_lasts_too_long_only_beyond_what_clocks_differ() -> None:
    hold = HoldRecord(0, LONGEST_HOLD_MS, "x", "ann", all=True)
    assert fault_of_hold(hold) == ""
    assert not lasts_too_long(hold, -60_000)
    assert lasts_too_long(hold, -600_000)
