"""When an instance joins and leaves its group: the table of the module, and a service that comes and goes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.participation import FIRST_REST, LONGEST_REST, Others, Participation

LEAVE = 10_000
ALONE, BESIDE_WELL, REPLACEABLE = Others(), Others(any_well=True), Others(any_well=True, well_behind_ours=True)
TURN = 500


def turns(state: Participation, others: Others, begin: int, end: int) -> list[int]:
    """When the state changed between two times."""
    return [at for at in range(begin, end, TURN) if state.turn(others, at)]


def member(at: int = 0) -> Participation:
    state = Participation(LEAVE, at)
    state.service(True, at)
    assert state.turn(ALONE, at)
    return state


def test_it_waits_for_its_service_while_another_is_well() -> None:
    state = Participation(LEAVE, 0)
    assert turns(state, BESIDE_WELL, 0, 1_000_000) == []
    state.service(True, 1_000_000)
    assert state.turn(BESIDE_WELL, 1_000_000)
    assert (state.member, state.works) == (True, True)


def test_a_group_in_which_nobody_is_well_is_joined_after_the_time_to_leave() -> None:
    state = Participation(LEAVE, 0)
    assert turns(state, BESIDE_WELL, 0, 5_000) == []
    assert turns(state, ALONE, 5_000, 60_000) == [5_000 + LEAVE]
    assert not state.works


def test_one_that_never_leaves_still_joins_an_empty_group() -> None:
    state = Participation(None, 0)
    assert turns(state, ALONE, 0, 200_000) == [120_000]
    assert turns(state, REPLACEABLE, 200_000, 2_000_000) == []


@pytest.mark.parametrize("others", [ALONE, BESIDE_WELL])
def test_a_member_whose_service_is_away_stays_until_another_is_well_since_then(others: Others) -> None:
    state = member()
    state.service(False, 100_000)
    assert turns(state, others, 100_000, 300_000) == []
    assert turns(state, REPLACEABLE, 300_000, 310_000) == [300_000]


def test_it_leaves_after_the_time_to_leave_and_rests_longer_each_time_that_its_service_fails_again() -> None:
    state, at, rests = member(), 100_000, []
    for _ in range(6):
        state.service(False, at)
        [left] = turns(state, REPLACEABLE, at, at + LEAVE + FIRST_REST + 1)
        assert left == at + max(LEAVE, FIRST_REST) or left == at + LEAVE
        state.service(True, left + 1_000)
        [joined] = turns(state, BESIDE_WELL, left + TURN, left + LONGEST_REST + 2_000)
        rests.append(joined - left)
        at = joined
    assert rests == [30_000, 60_000, 120_000, 240_000, 300_000, 300_000]
    state.service(False, at + LONGEST_REST)
    [left] = turns(state, REPLACEABLE, at + LONGEST_REST, at + 2 * LONGEST_REST)
    state.service(True, left)
    assert turns(state, BESIDE_WELL, left, left + LONGEST_REST) == [left + FIRST_REST], "it was well for long"


def test_nobody_rests_while_no_other_instance_is_well() -> None:
    state = member()
    state.service(False, 100_000)
    [left] = turns(state, REPLACEABLE, 100_000, 120_000)
    state.service(True, left + TURN)
    assert turns(state, ALONE, left + TURN, left + 5_000) == [left + TURN]


@pytest.mark.parametrize("always", [True, False])
def test_one_that_is_always_a_member_and_one_that_is_pulled_from_never_leave(always: bool) -> None:
    state = Participation(LEAVE, 0, always=always, leaves=always)
    assert (state.member, state.works) == (always, always)
    state.service(True, 0)
    state.turn(ALONE, 0)
    state.service(False, 1_000)
    assert turns(state, REPLACEABLE, 1_000, 500_000) == []
    assert (state.member, state.works) == (True, False)


def test_a_service_that_is_looked_at_again_and_again_is_away_since_the_first_look() -> None:
    state = member()
    for at in range(100_000, 100_000 + LEAVE, TURN):
        state.service(False, at)
        assert not state.turn(REPLACEABLE, at)
    state.service(False, 100_000 + LEAVE)
    assert state.turn(REPLACEABLE, 100_000 + LEAVE)


def test_a_service_that_is_looked_at_again_and_again_is_well_since_the_first_look() -> None:
    """Then the rest begins anew: it was well for long."""
    state, rests, at = member(), [], 100_000
    for _ in range(2):
        state.service(False, at)
        [left] = turns(state, REPLACEABLE, at, at + LEAVE + FIRST_REST + 1)
        state.service(True, left)
        [joined] = turns(state, BESIDE_WELL, left + TURN, left + LONGEST_REST)
        rests.append(joined - left)
        for at in range(joined, joined + LONGEST_REST + TURN, TURN):
            state.service(True, at)
    assert rests == [FIRST_REST, FIRST_REST]


def test_one_that_joined_an_empty_group_without_its_service_leaves_it_to_one_that_is_well() -> None:
    state = Participation(LEAVE, 0)
    [joined] = turns(state, ALONE, 0, 60_000)
    assert turns(state, REPLACEABLE, joined + TURN, 100_000) == [joined + FIRST_REST]


@given(st.lists(st.tuples(st.booleans(), st.integers(100, 40_000)), max_size=60))
def test_a_service_that_comes_and_goes_causes_no_two_rebalances_in_thirty_seconds(
    steps: list[tuple[bool, int]],
) -> None:
    state, at, changes = member(), 0, [0]
    for well, lasts in steps:
        state.service(well, at)
        changes += turns(state, REPLACEABLE, at, at + lasts)
        at += lasts
    assert all(later - earlier >= FIRST_REST for earlier, later in pairwise(changes))
