"""What an owner suspects of a partition, from the progress that the last owner left."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.suspicion import (
    FEWEST,
    MOST,
    QUIET_MS,
    SMALLEST,
    TRIES,
    Stage,
    Suspicion,
    suspicion_of,
)
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Now
from tests.sim.samples import record

BEGIN = Now(wall_ms=1_000_000, steady_ms=50_000)


def of(
    deaths: int, reach: int | None = None, mark: int | None = None, full: int = 256, *, died: bool = True
) -> Suspicion:
    """The suspicion of a partition whose progress is at 100, with three deaths allowed."""
    return suspicion_of(Progress(100, frozenset({105}), mark=mark, reach=reach), deaths, 3, full, died=died)


@pytest.mark.parametrize(
    ("deaths", "reach", "stage", "kept", "behind"),
    [
        (0, 110, Stage.FRESH, 0, None),
        (1, 110, Stage.FEW, 1, 99),
        (2, 110, Stage.SINGLE, 2, 110),
        (2, 100, Stage.SINGLE, 2, 100),
        (2, 99, Stage.FEW, 1, 99),
        (3, 99, Stage.FEW, 1, 99),
        (2, None, Stage.SINGLE, 2, None),
        (1, 99, Stage.FEW, 1, 99),
    ],
)
def test_the_stage_follows_from_the_deaths_and_from_what_was_in_flight(
    deaths: int, reach: int | None, stage: Stage, kept: int, behind: int | None
) -> None:
    found = of(deaths, reach)
    assert (found.stage, found.deaths, found.reach) == (stage, kept, behind)


@pytest.mark.parametrize(
    ("deaths", "mark", "died", "culprit"),
    [(3, 103, True, 103), (2, 103, True, None), (3, 103, False, None), (3, 105, True, None), (3, 99, True, None)],
)
def test_guilty_is_who_was_alone_in_flight_at_one_death_too_many_and_is_not_done(
    deaths: int, mark: int, died: bool, culprit: int | None
) -> None:
    assert of(deaths, 110, mark, died=died).culprit == culprit


@pytest.mark.parametrize(
    ("full", "window", "group"), [(1, FEWEST, SMALLEST), (100, 100, 12), (10_000, MOST, MOST // 8)]
)
def test_as_many_are_suspects_as_can_be_in_flight_and_an_eighth_of_them_goes_at_once(
    full: int, window: int, group: int
) -> None:
    found = of(1, 110, full=full)
    assert (found.window, found.most_in_flight) == (window, group)


def test_alone_go_those_that_the_last_owner_released_and_no_later_one() -> None:
    found = of(2, 110)
    assert [found.is_suspect(offset) for offset in (110, 111)] == [True, False]


def test_what_was_due_only_after_a_quiet_beginning_ends_the_suspicion_of_all_that_follow() -> None:
    found = Suspicion(1, Stage.FEW, window=2, reach=9)
    found.begin(BEGIN)
    early, quiet = Now(0, BEGIN.steady_ms + QUIET_MS - 1), Now(0, BEGIN.steady_ms + QUIET_MS)
    found.close_window(10, BEGIN.wall_ms + 1, early)
    assert found.is_suspect(10), "the owner has not lived long enough"
    found.close_window(10, BEGIN.wall_ms, quiet)
    assert found.is_suspect(10), "it was due before, so it may have been in flight"
    found.close_window(10, BEGIN.wall_ms + 1, quiet)
    assert not found.is_suspect(10)
    assert not found.is_suspect(11), "no later record either"


def test_only_as_many_records_are_suspects_as_the_window_holds() -> None:
    found = Suspicion(1, Stage.FEW, window=2, reach=9)
    for offset in (10, 11):
        assert found.is_suspect(offset)
        found.suspect(offset)
    assert not found.is_suspect(12)
    assert found.is_suspect(11), "it has not been cleared"


def test_without_a_reach_as_many_go_alone_as_two_windows_hold() -> None:
    found = Suspicion(2, Stage.SINGLE, window=2)
    for offset in range(4):
        assert found.is_suspect(offset)
        found.suspect(offset)
    assert not found.is_suspect(4)


def test_who_went_alone_and_was_answered_is_cleared_and_nobody_else_is() -> None:
    found = Suspicion(2, Stage.SINGLE, reach=110, mark=103)
    for offset in (103, 104):
        found.suspect(offset)
        found.answered(offset, comes_again=False)
    assert (found.cleared, found.suspects) == ({103}, set())


def test_time_clears_all_once_the_last_that_was_let_go_is_done() -> None:
    found = Suspicion(2, Stage.SINGLE, reach=110)
    assert [found.is_passed(first) for first in (110, 111)] == [False, True]
    found.mark = 108
    assert not found.is_passed(111), "one is still out"
    assert not Suspicion(2, Stage.SINGLE).is_passed(111), "nobody knows how far the last owner came"


def test_the_first_record_or_the_end_of_the_log_is_met_once() -> None:
    found = Suspicion(1, Stage.FEW)
    assert [found.meet(BEGIN) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("reach", "wanted", "told"), [(110, 112, 112), (112, 110, 112), (90, 91, 99), (None, 112, None)]
)
def test_the_next_owner_learns_of_all_that_may_be_delivered(reach: int | None, wanted: int, told: int | None) -> None:
    found = Suspicion(1, Stage.FEW, opening=True, reach=reach, reach_wanted=wanted)
    assert found.with_crash_state(Progress(100)).reach == told


def test_a_mark_is_told_until_its_record_is_done_or_the_owner_is_gone_in_peace() -> None:
    found = Suspicion(2, Stage.SINGLE, opening=True, reach=110, mark=103)
    assert found.with_crash_state(Progress(100)) == Progress(100, deaths=2, mark=103, reach=110)
    assert found.with_crash_state(Progress(100, frozenset({103}))).mark is None
    assert found.with_crash_state(Progress(104)).mark is None
    assert found.with_crash_state(Progress(100, clean=True)).mark is None


def test_to_want_more_takes_a_commit_and_to_want_the_same_does_not() -> None:
    found = Suspicion(1, Stage.FEW, most_in_flight=3, reach=99)
    assert found.want_reach([100, 101, 102, 103], 0), "and that anything is delivered"
    assert (found.reach_wanted, found.opening) == (102, True)
    assert not found.want_reach([100, 101, 102, 103], 0)
    assert not found.want_reach([103], 3), "there is no room"
    assert found.want_reach([103], 2)
    assert found.reach_wanted == 103


def test_a_cleared_record_that_keeps_suspects_from_coming_goes_alone_again_and_counts_once() -> None:
    suspicion, kept = of(2), record(100)
    for _ in range(TRIES):
        suspicion.set_mark(kept)
        suspicion.answered(100, comes_again=True)
        suspicion.unmark()
        suspicion.check()
    assert (suspicion.cleared, suspicion.suspects, suspicion.suspected) == ({100}, set(), 1)
    suspicion.set_mark(kept)
    suspicion.check()
    assert (suspicion.cleared, suspicion.suspects, suspicion.suspected) == (set(), {100}, 1)
    suspicion.answered(100, comes_again=True)
    assert (suspicion.cleared, suspicion.suspects) == ({100}, set())
