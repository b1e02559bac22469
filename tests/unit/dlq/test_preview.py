"""A safe look at a value, whatever it is."""

from __future__ import annotations

import pytest

from reconsume.sidecar.dlq.preview import SHOWN, looked_at, one_line, preview


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"plain \x1b[31m", "text", "plain \x1b[31m"),
        (b"\xff\x00\x01", "hex", "ff 00 01"),
        (b"[1.10, 1e400, {}, []]", "json", "[\n  1.10,\n  1e400,\n  {},\n  []\n]"),
        (b'{"a": 1, "a": 2}', "json", '{\n  "a": 1,\n  "a": 2\n}'),
        (b'{"a": ', "text", '{"a": '),
        (b"[" * 60_000, "text", "[" * 60_000),
        (b"[" * 700 + b"]" * 700, "text", "[" * 700 + "]" * 700),
        (b"[" + b"9" * 20_000 + b"]", "json", "[\n  " + "9" * 20_000 + "\n]"),
    ],
)
def test_a_value_is_shown_as_what_it_is(value: bytes | None, kind: str, shown: str) -> None:
    assert looked_at(value) == (kind, shown)


def test_of_a_long_value_the_beginning_is_shown_and_that_is_said() -> None:
    long = preview(b"x" * (SHOWN + 1))
    assert (len(str(long["shown"])), long["cut"], long["bytes"]) == (SHOWN, True, SHOWN + 1)
    binary = preview(b"\xff" * 10_000_000)
    assert binary["cut"] is True
    assert len(str(binary["shown"])) <= SHOWN


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "(null)"),
        (b"", "(empty)"),
        (b"a", "a"),
        (b"\xff\x1b", "0xff1b"),
        (b"\xff" * 65, f"0x{'ff' * 64}…"),
        (b"x" + "é".encode() * SHOWN, "x" + "é" * (SHOWN - 1)),
    ],
)
def test_a_key_or_a_header_on_one_line(data: bytes | None, text: str) -> None:
    assert one_line(data) == text
