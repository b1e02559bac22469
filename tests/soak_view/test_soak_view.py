"""Two minutes of the view's soak, always by the same faults. `make soak-view` takes twenty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak_view.run import FAULTS, ViewSoak
from tests.soak_view.schedule import ALONE, ENDING, KINDS, rounds
from tests.soak_view.world import PROPERTIES
from tests.support.kafka.broker import embedded

SEED = 14
SECONDS = 120.0


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_view_is_right_after_each_of_two_minutes_of_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with embedded(properties=PROPERTIES) as kafka, ViewSoak(kafka, tmp_path, SEED, "local[2]", told.append) as soak:
        verdict = soak.run(rounds(SEED), SECONDS)
    with capsys.disabled():
        print(f"\n  {verdict}", end=" ")  # noqa: T201 - the numbers are what the run is for
    assert not verdict.violations, "\n".join([*told, *verdict.violations])
    assert verdict.rounds > 2


def test_every_fault_of_a_schedule_is_one_that_the_soak_can_do_and_the_seed_says_which() -> None:
    assert FAULTS.keys() == KINDS.keys()
    first, again, other = ([turn for turn, _ in zip(rounds(seed), range(80), strict=False)] for seed in (1, 1, 2))
    assert first == again != other
    assert {turn.kind for turn in first} == KINDS.keys()
    with pytest.raises(ValueError, match="no such fault: moon"):
        next(rounds(1, ["moon"]))


@pytest.mark.parametrize("seed", range(8))
def test_the_first_rounds_have_each_fault_once_with_rest_where_a_process_of_the_job_ends(seed: int) -> None:
    first = [turn for turn, _ in zip(rounds(seed), KINDS, strict=False)]
    assert sorted(turn.kind for turn in first) == sorted(KINDS)
    assert {turn.kind for turn in first if turn.rests} == ENDING | {ALONE}
    assert first[-1].kind == ALONE
    some = [turn.rests for turn, _ in zip(rounds(seed, ["group-added", "second-job"]), range(9), strict=False)]
    assert all(some), "and where none of them ends the job, after each"
