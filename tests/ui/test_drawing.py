"""The pictures and the words on them: pure, and harmless whatever a record holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from reconsume.sidecar.printable import printable
from reconsume.sidecar.ui.overview import journey_steps
from reconsume.sidecar.ui.templating import ago, cut, environment, length, moment, short
from reconsume.sidecar.view.query import Minute
from reconsume.topics.events import Event, State
from tests.support.kafka.view_topics import event
from tests.ui.hostile import ATTACKS

NOW = 1_763_690_000_000
CHARTS: Any = environment().get_template("charts.html").module


def journey_picture(events: list[Event]) -> str:
    return str(CHARTS.journey(list(journey_steps(events, NOW))))


def told(number: int, state: State, **changes: object) -> Event:
    return event("billing", number, state, **{"at": NOW - 100_000 + number * 10_000, **changes})  # type: ignore[arg-type]


def texts(svg: str) -> list[str]:
    """Every text of a picture, which must be well-formed by itself."""
    return [part.text or "" for part in ET.fromstring(svg).iter() if part.tag in ("text", "title")]


def test_a_minute_is_as_tall_as_what_happened_in_it() -> None:
    svg = ET.fromstring(CHARTS.minutes([Minute(0, 6, 3, 1), Minute(60_000, 5, 0, 0)], 0))
    heights = [float(one.attrib["height"]) for one in svg.iter("rect")]
    assert sum(heights[:3]) == pytest.approx(2 * heights[3], abs=0.2)


def test_a_journey_says_why_and_who_dismissed_it() -> None:
    events = [
        told(0, State.WAITING_RETRY, times=1, reason="http-422", text="unknown sku: A-99"),
        told(1, State.DLQ, times=1, reason="http-422", text=None),
        told(2, State.DISMISSED, times=1, reason="http-422"),
    ]
    shown = texts(journey_picture(events))
    assert any(text.startswith("failed · http-422: unknown sku: A-99 by ") for text in shown)
    assert any(text.startswith("dead letter · http-422 by ") for text in shown)
    assert any(text.startswith("dismissed · http-422 by ") for text in shown)


def test_a_journey_shows_each_event_once_and_in_order() -> None:
    events = [
        told(0, State.WAITING_RETRY, times=1, reason="http-500"),
        told(1, State.DLQ, times=1, reason="bad-sku"),
        told(2, State.REDRIVEN, times=0, redrives=1, reason="bad-sku"),
        told(3, State.COMMIT, times=0, redrives=1, reason=""),
    ]
    shown = [text for text in texts(journey_picture(events)) if text in "✕†↺✓"]
    assert shown == ["✕", "†", "↺", "✓"]


def test_a_record_that_still_waits_has_an_open_end_with_its_due_time() -> None:
    waits = told(0, State.WAITING_RETRY, at=NOW - 4_000, due=NOW + 6_000, level="10s")
    assert 'class="wait open"' in journey_picture([waits])
    assert any("due in 6s" in text for text in texts(journey_picture([waits])))
    assert "open" not in journey_picture([waits, told(1, State.COMMIT)])


def test_a_parked_record_is_not_due() -> None:
    parked = told(0, State.WAITING_RETRY, at=NOW - 4_000, due=0)
    assert "parked until a person settles it" in texts(journey_picture([parked]))
    assert "parked" in texts(journey_picture([parked, told(1, State.COMMIT)]))


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_becomes_markup(attack: str) -> None:
    events = [told(0, State.WAITING_RETRY, reason=attack, level=attack, instance=attack, due=NOW + 1)]
    svg = journey_picture(events)
    assert {part.tag for part in ET.fromstring(svg).iter()} <= {
        "svg",
        "text",
        "title",
        "line",
        "circle",
        "path",
        "rect",
    }
    assert "style=" not in svg
    assert {sign for sign in svg if not sign.isprintable()} <= {"\n"}


def test_a_bar_of_nothing_is_empty() -> None:
    assert 'width="0.0"' in CHARTS.bar(0, 0)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1_200, "1.2k"), (34_000, "34k"), (1_200_000, "1.2M")]
)
def test_counts_are_short(count: int, text: str) -> None:
    assert short(count) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (999, "999ms"), (61_000, "1m1s"), (7_384_000, "2h3m"), (-5_000, "-5s"), (900_000_000, "10d")],
)
def test_lengths_are_told_in_two_units(ms: int, text: str) -> None:
    assert length(ms) == text


def test_words_are_cut_and_never_move_the_reader() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert printable("a\u202eb\x1b") == "a\\u202eb\\x1b"
    assert moment(0) == ""
    assert moment(2**62) == str(2**62)
    assert ago(NOW - 500, NOW) == "0s ago"


@pytest.mark.parametrize("state", State)
def test_each_state_has_a_line_of_the_picture_in_plain_words(state: State) -> None:
    assert state not in " ".join(texts(journey_picture([told(0, state, times=1)])))
