"""A ladder that keeps the order is in force only while every live instance reads queues, whoever sets it and when."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.runtime.ladder_gate import LadderGate
from tests.sim.samples import policy

INTERVAL_MS = 700
LADDER = policy(queued=True)
IN_PLACE = replace(policy(), drained=True, in_place=InPlace(INTERVAL_MS))
WAITS = replace(LADDER, queued=False, drained=True, in_place=InPlace(INTERVAL_MS))
"""What applies in the place of LADDER."""


class Runner:
    """A lane that only notes which policies it is given."""

    def __init__(self) -> None:
        self.applied: list[Policy] = []
        self.expects = False

    def expect_queues(self) -> None:
        self.expects = True

    def apply_policy(self, policy: Policy, waits: Mapping[str, int]) -> None:
        assert waits == {}
        self.applied.append(policy)


class Gate(LadderGate):
    """A gate with one lane; `old` are the instances that read no queues."""

    def __init__(self, policy: Policy, *old: str) -> None:
        self.lane, self.old = Runner(), list(old)
        super().__init__([self.lane], policy, INTERVAL_MS, lambda: self.old)  # type: ignore[list-item]


def test_a_ladder_of_the_configuration_begins_once_the_last_old_instance_is_gone() -> None:
    gate = Gate(LADDER, "old-0")
    gate.look()
    gate.look()
    assert gate.lane.applied == [WAITS]
    gate.old.clear()
    gate.look()
    gate.look()
    assert gate.lane.applied == [WAITS, LADDER]


@pytest.mark.parametrize(("old", "expected"), [((), LADDER), (("old-0",), WAITS)])
def test_a_ladder_that_is_set_while_records_are_delivered_asks_who_lives_before_anything_is_written(
    old: tuple[str, ...], expected: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(IN_PLACE, *old)
    gate.look()
    assert gate.lane.applied == []
    with caplog.at_level(logging.WARNING, "reconsume.run"):
        assert gate.shaped(LADDER, INTERVAL_MS) == expected
    assert [record.event for record in caplog.records] == ["ladder-waits"] * len(old)  # type: ignore[attr-defined]
    gate.look()
    assert gate.lane.applied == []


def test_a_ladder_that_ends_and_begins_again_waits_for_those_that_came_meanwhile() -> None:
    gate = Gate(LADDER, "old-0")
    gate.look()
    assert gate.shaped(IN_PLACE, INTERVAL_MS) == IN_PLACE
    gate.old.clear()
    gate.look()
    assert gate.shaped(LADDER, INTERVAL_MS) == LADDER
    assert gate.shaped(IN_PLACE, INTERVAL_MS) == IN_PLACE
    gate.old.append("old-1")
    assert gate.shaped(LADDER, 50) == replace(WAITS, in_place=InPlace(50))


def test_a_lane_expects_queues_of_a_ladder_that_waits_whoever_set_it() -> None:
    """Given an old instance, so that no policy that a lane is given has a ladder: former owners may have had it."""
    configured, set_later = Gate(LADDER, "old-0"), Gate(IN_PLACE, "old-0")
    assert (configured.lane.expects, set_later.lane.expects) == (True, False)
    assert set_later.shaped(LADDER, INTERVAL_MS) == WAITS
    assert set_later.lane.expects
