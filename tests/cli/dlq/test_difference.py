"""The difference that `dlq edit` shows: readable, whatever the values are, and bounded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.cli.dlq.difference import AROUND, MOST_LINES, difference
from reconsume.sidecar.dlq.preview import SHOWN

LONG = b"{" + b",".join(b'"m%d": %d' % (number, number) for number in range(50)) + b"}"
CASES: dict[str, tuple[bytes | None, bytes | None, list[str]]] = {
    "json by members": (b'{"a":1,"b":2}', b'{"a":1,"b":3}', ["  {", '    "a": 1,', '-   "b": 2', '+   "b": 3', "  }"]),
    "text by lines": (b"one\ntwo", b"one\nthree", ["  one", "- two", "+ three"]),
    "null": (None, b"x", ["- (null)", "+ x"]),
    "emptied": (b"x", b"", ["- x", "+ (empty)"]),
    "binary": (b"\xff\x00", b"\xff\x01", ["- ff 00", "+ ff 01"]),
    "text to binary": (b"text", b"\xff", ["- 4 bytes, text", "+ 1 bytes, hex"]),
    "blanks of json": (b'{"a":1}', b'{"a": 1}', ["  (the same as far as it is compared, or but for blanks)"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(name: str) -> None:
    old, new, shown = CASES[name]
    assert difference(old, new) == shown


def test_only_what_changed_and_what_is_around_it() -> None:
    lines = difference(LONG, LONG.replace(b'"m7": 7', b'"m7": 8').replace(b'"m40": 40', b'"m40": 41'))
    assert [line for line in lines if line[0] in "-+"] == [
        '-   "m7": 7,',
        '+   "m7": 8,',
        '-   "m40": 40,',
        '+   "m40": 41,',
    ]
    assert len(lines) == 4 + 4 * AROUND + 1


@given(st.binary(max_size=400) | st.none(), st.binary(max_size=400) | st.none())
def test_any_two_values_have_a_bounded_difference(old: bytes | None, new: bytes | None) -> None:
    lines = difference(old, new)
    assert 1 <= len(lines) <= MOST_LINES + 1
    assert all(len(line) <= SHOWN + 2 for line in lines)


def test_large_values_cost_seconds_at_most() -> None:
    began = time.monotonic()
    lines = difference(b"a\nb\n" * 500_000, b"b\na\n" * 500_000)
    assert "beyond" in lines[-1]
    assert time.monotonic() - began < 30
