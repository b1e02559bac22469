"""A storm is one reason for most failures."""

from __future__ import annotations

import pytest

from reconsume.sidecar.view.storm import Failures, Rule, Storm, storm_of

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
