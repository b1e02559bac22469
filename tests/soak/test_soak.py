"""Two minutes of the soak: everything at once, always by the same schedule. `make soak` takes half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.soak.run import soak
from tests.soak.schedule import plan

SEED = 13
SECONDS = 120.0
WAVES = 200
"""Records a second at most: other tests run beside it."""


@pytest.mark.three
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_group_under_two_minutes_of_faults_loses_nothing_and_comes_to_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = plan(SEED, SECONDS, highest=WAVES)
    outcome = soak(schedule, tmp_path, Console())
    with capsys.disabled():
        print("", outcome.figures, *outcome.ordered, *outcome.growth, sep="\n  ", end=" ")  # noqa: T201 - the numbers are what the run is for
    told = "\n".join([*outcome.broken, *outcome.findings, *outcome.violations[:40], *outcome.journeys])
    assert outcome.clean, f"{told}\nkept in {tmp_path}"
