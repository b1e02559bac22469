"""The forms of dead letters: what they mean, and what is refused with a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from reconsume.sidecar.dlq.letters import LONGEST_FILTER, Eligibility, Filter
from reconsume.sidecar.dlq.preview import BEGINNING, snippet
from reconsume.sidecar.ui.letter_form import (
    MOST_PICKED,
    OPEN,
    STATES,
    BadFormError,
    LetterSearch,
    parse_rate,
    parse_search,
    parse_selection,
)
from reconsume.sidecar.ui.templating import begins, due, iso

NOW = 1_763_690_000_000
DLQ = ("billing-DLQ",)
PLACE = "billing-DLQ:0:7"

MEANT: dict[str, tuple[dict[str, str], Filter]] = {
    "nothing": ({}, Filter()),
    "blanks": ({"reason": "  ", "id": ""}, Filter()),
    "a reason": ({"reason": " http-503 "}, Filter(reasons=("http-503",))),
    "an id": ({"id": "orders:0:1"}, Filter(ids=("orders:0:1",))),
    "a topic": ({"topic": "orders"}, Filter(topics=("orders",))),
    "a key that begins with a blank": ({"key": " k"}, Filter(keys=(" k",))),
    "what the value contains": ({"contains": '"a": 1 '}, Filter(contains=('"a": 1 ',))),
    "the inputs of the page": ({"text": " a", "record": " orders:0:1 "}, Filter(("orders:0:1",), contains=(" a",))),
    "an age": ({"since": "1h"}, Filter(since=NOW - 3_600_000)),
    "fields of others": ({"csrf": "x", "plan": "y"}, Filter()),
}


@pytest.mark.parametrize(("given", "meant"), MEANT.values(), ids=MEANT)
def test_a_search_means_what_its_form_says(given: dict[str, str], meant: Filter) -> None:
    asked = parse_search(given, NOW)
    assert (asked.filter, asked.states) == (meant, STATES[OPEN])
    assert parse_search(asked.fields, NOW) == asked, "the form that is shown again means the same"


@pytest.mark.parametrize("state", list(Eligibility))
def test_a_state_is_asked_for_by_the_word_of_the_command_line(state: Eligibility) -> None:
    assert parse_search({"state": str(state)}, NOW).states == {state}
    assert parse_search({"state": "all"}, NOW).states == frozenset(Eligibility)


@pytest.mark.parametrize(
    "given",
    [
        {"reason": "x" * (LONGEST_FILTER + 1)},
        {"key": "\ud800"},
        {"since": "2h"},
        {"state": "dead"},
        {"state": "READY"},
        {"id": "orders:0:1", "record": "orders:0:2"},
        {"contains": "a", "text": "b"},
    ],
    ids=str,
)
def test_a_search_that_cannot_be_meant_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadFormError):
        parse_search(given, NOW)


SELECTED: dict[str, tuple[Mapping[str, str], tuple[str, ...], Filter]] = {
    "all that match": ({"scope": "all", "reason": "a"}, (), Filter(reasons=("a",))),
    "a form of an older page": ({"reason": "a"}, (), Filter(reasons=("a",))),
    "the ticked ones": ({"scope": "picked", "reason": "a"}, (PLACE, PLACE), Filter(ids=(PLACE,))),
}


@pytest.mark.parametrize(("given", "places", "meant"), SELECTED.values(), ids=SELECTED)
def test_a_selection_is_the_ticked_ones_or_all_that_match(
    given: Mapping[str, str], places: tuple[str, ...], meant: Filter
) -> None:
    assert parse_selection(given, places, DLQ, NOW).filter == meant


UNCLEAR: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "nothing is ticked": ({"scope": "picked"}, ()),
    "some are ticked, and it says all": ({"scope": "all"}, (PLACE,)),
    "an unknown scope": ({"scope": "every"}, (PLACE,)),
    "too many": ({"scope": "picked"}, tuple(f"billing-DLQ:0:{number}" for number in range(MOST_PICKED + 1))),
    "a place of another group": ({"scope": "picked"}, ("other-DLQ:0:7",)),
    "an id": ({"scope": "picked"}, ("orders:0:7",)),
    "no place": ({"scope": "picked"}, (PLACE, "7")),
    "an offset that is none": ({"scope": "picked"}, ("billing-DLQ:0:-1",)),
    "digits of another script": ({"scope": "picked"}, ("billing-DLQ:0:\u0667",)),
    "half a sign": ({"scope": "picked"}, ("\ud800:0:1",)),
}


@pytest.mark.parametrize(("given", "places"), UNCLEAR.values(), ids=UNCLEAR)
def test_a_selection_that_is_not_clear_is_refused(given: dict[str, str], places: tuple[str, ...]) -> None:
    with pytest.raises(BadFormError):
        parse_selection(given, places, DLQ, NOW)


@pytest.mark.parametrize(("text", "rate"), [("", None), (" ", None), ("50", 50.0), ("0.5", 0.5), ("100000", 1e5)])
def test_a_rate_is_a_number_or_none(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "ten", "1,5", "\u0661", "1" * 400, "0x10"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadFormError):
        parse_rate(text)


def test_the_audit_log_has_each_condition_and_nothing_else() -> None:
    asked = parse_search({"key": "k", "contains": "v", "state": "ready", "since": "1h"}, NOW)
    assert asked.facts == {"key": ["k"], "contains": ["v"], "state": "ready", "since": NOW - 3_600_000}
    assert LetterSearch({}, Filter(ids=(PLACE,)), frozenset(Eligibility)).facts == {"id": [PLACE]}


SNIPPETS: dict[str, tuple[bytes | None, str]] = {
    "null": (None, "(null)"),
    "empty": (b"", "(empty)"),
    "text": (b"hello", "hello"),
    "lines": (b'{\n  "a": 1\n}', '{ "a": 1 }'),
    "bytes": (b"\xff\x00\x01", "0xff0001"),
    "cut inside a sign": ("ab\u20ac".encode()[:-1], "ab"),
    "long text": (b"a" * 30, "a" * 19 + "…"),
    "long bytes": (b"\xff" * 30, "0x" + "ff" * 8 + "f…"),
}


@pytest.mark.parametrize(("data", "shown"), SNIPPETS.values(), ids=SNIPPETS)
def test_a_value_begins_in_few_words(data: bytes | None, shown: str) -> None:
    assert snippet(data, 20) == shown


def test_a_value_that_goes_on_says_so() -> None:
    assert begins(b"{" + b" " * BEGINNING) == "{…"
    assert begins(b"{}") == "{}"


@pytest.mark.parametrize(
    ("at", "said"),
    [(5_000, "due in 5s"), (999, "due now"), (0, "due now"), (-999, "due now"), (-192_000, "overdue by 3m12s")],
)
def test_when_something_is_due(at: int, said: str) -> None:
    assert due(NOW + at, NOW) == said
    assert due(0, NOW) == "parked"


@pytest.mark.parametrize(("at", "text"), [(NOW, "2025-11-21T01:53:20Z"), (0, ""), (-1, ""), (2**62, "")])
def test_a_time_for_scripts_is_one_or_nothing(at: int, text: str) -> None:
    assert iso(at) == text
