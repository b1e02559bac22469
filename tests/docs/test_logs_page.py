"""`docs/logs.md` tells of every line that the code may write: its kind, level and fields, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.log_calls import Line, lines

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")
TOLD = {
    event: (level, frozenset(re.findall(r"`(\w+)`", fields)), meaning.strip())
    for event, level, fields, meaning in re.findall(
        r"^\| `([\w-]+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", PAGE, re.MULTILINE
    )
}


@pytest.fixture(scope="module")
def written() -> list[Line]:
    """Every line that the code may write."""
    return lines()


def rows_of(line: Line) -> list[str]:
    """The rows that tell of a line: one, or several where a part of its name is computed."""
    if line.event.endswith("*"):
        return [event for event in TOLD if event.startswith(line.event[:-1]) and TOLD[event][0] == line.level]
    return [line.event] if line.event in TOLD else []


def test_every_line_has_a_kind(written: list[Line]) -> None:
    assert [line.where for line in written if not line.event] == [], "no extra={'event': ...}"


def test_every_kind_is_told_with_its_level_and_fields(written: list[Line]) -> None:
    assert [line for line in written if not rows_of(line)] == []
    assert [line for line in written for event in rows_of(line) if (line.level, line.fields) != TOLD[event][:2]] == []


def test_no_kind_is_told_that_nobody_writes(written: list[Line]) -> None:
    assert {event for line in written for event in rows_of(line)} == set(TOLD)


def test_kinds_are_in_order_and_told_once() -> None:
    names = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    assert names == sorted(set(names))


SOURCE = """
class A:
    def f(self, x):
        where = {"offset": 1}
        text, extra = "t %s", {"event": "two", "n": x}
        _LOG.info("t", extra={"event": "one", **where})
        _LOG.warning(text, extra=extra)
        _LOG.error("no name")
        self.g("three", "t")
        _LOG.debug("t", extra={"event": f"four-{x}"})

    def g(self, event, text):
        _LOG.exception(text, extra={"event": event})
"""


def test_the_reader_of_the_code_misses_nothing(tmp_path: Path) -> None:
    """Given every form in which a line is written, then each is found with its kind; one without a name shows."""
    (tmp_path / "a.py").write_text(SOURCE)
    assert {(line.event, line.level, line.fields) for line in lines(tmp_path)} == {
        ("one", "info", frozenset({"offset"})),
        ("two", "warning", frozenset({"n"})),
        ("", "error", frozenset()),
        ("four-*", "debug", frozenset()),
        ("three", "error", frozenset()),
    }
