"""The pictures and the words on them: pure, and harmless whatever a record holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from reconsume.sidecar.printable import printable
from reconsume.sidecar.ui.templating import ago, cut, environment, length, moment, short
from reconsume.sidecar.view.query import Minute

NOW = 1_763_690_000_000
CHARTS: Any = environment().get_template("charts.html").module


def test_a_minute_is_as_tall_as_what_happened_in_it() -> None:
    svg = ET.fromstring(CHARTS.minutes([Minute(0, 6, 3, 1), Minute(60_000, 5, 0, 0)], 0))
    heights = [float(one.attrib["height"]) for one in svg.iter("rect")]
    assert sum(heights[:3]) == pytest.approx(2 * heights[3], abs=0.2)


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
