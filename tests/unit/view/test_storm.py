"""A storm is one reason for most failures; it is told when it begins, and once a window while it lasts."""

from __future__ import annotations

import pytest

from sidecar.view.storm import Alarm, Failures, Rule, Storm, storm_of

RULE = Rule(window=60_000, share=0.5, least=100)


@pytest.mark.parametrize(
    ("total", "reasons", "storm"),
    [
        (0, (), None),
        (100, (("http-500", 100),), Storm("http-500", 100, 100)),
        (99, (("http-500", 99),), None),
        (200, (("http-500", 100), ("timeout", 100)), Storm("http-500", 100, 200)),
        (201, (("http-500", 100), ("timeout", 80)), None),
        (10_000, (("http-500", 5_001), ("timeout", 4_999)), Storm("http-500", 5_001, 10_000)),
    ],
)
def test_a_storm_is_enough_failures_of_one_reason_and_its_share(
    total: int, reasons: tuple[tuple[str, int], ...], storm: Storm | None
) -> None:
    assert storm_of(Failures(total, reasons), RULE) == storm


def told(looks: list[tuple[bool, int]]) -> list[int]:
    alarm = Alarm(60_000)
    return [steady for stormy, steady in looks if alarm.rings(stormy, steady)]


def test_a_storm_is_told_when_it_begins_and_once_a_window_while_it_lasts() -> None:
    assert told([(second >= 10, second * 1_000) for second in range(0, 160, 5)]) == [10_000, 70_000, 130_000]


def test_a_storm_that_comes_and_goes_is_told_no_more_often() -> None:
    assert told([(True, 0), (False, 5_000), (True, 10_000), (False, 60_000), (True, 65_000)]) == [0, 65_000]
