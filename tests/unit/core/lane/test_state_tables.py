"""The tables of states at the top of a module name the states that the code has, and each can be left."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from reconsume.sidecar.core.lane import ownership, suspicion
from reconsume.sidecar.core.lane.partition import LanePartition

OWNERSHIP = {"assigned", "paused", "blocked", "closing", "gone"}
STAGES = {"none", *(stage.name.lower() for stage in suspicion.Stage)}


def rows(text: str | None) -> list[tuple[str, str]]:
    """State, and the states that it leaves to."""
    found = [line.split("|") for line in (text or "").splitlines() if line.count("|") == 2]
    return [(cells[0].strip(), cells[2].split(":")[0].strip()) for cells in found[2:]]


@pytest.mark.parametrize(("text", "states"), [(ownership.__doc__, OWNERSHIP), (suspicion.__doc__, STAGES)])
def test_a_table_has_every_state_and_leads_nowhere_else(text: str | None, states: set[str]) -> None:
    found = rows(text)
    assert {state for state, _ in found} == states
    assert {target.strip() for _, targets in found for target in targets.split(",")} <= states


def test_the_states_of_a_partition_are_fields_of_it() -> None:
    """`assigned` and `gone` are told by whether there is a `LanePartition` at all."""
    assert {field.name for field in fields(LanePartition)} >= OWNERSHIP - {"assigned", "gone"}


def test_the_times_and_the_function_that_a_table_names_are_there() -> None:
    named = set(re.findall(r"`([A-Z_]+|[a-z_]+_of|after_time)`", suspicion.__doc__ or ""))
    assert named == {"QUIET_MS", "IDLE_MS", "suspicion_of", "after_time"}
    assert named <= vars(suspicion).keys() | vars(suspicion.Suspicion).keys()
