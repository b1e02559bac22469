"""What `/status` shows of one partition, for each state that it may be in."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.lane.partition import Because, LanePartition, Pause
from reconsume.sidecar.core.overdue import Standing
from reconsume.sidecar.core.progress import Progress, ProgressTracker
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.core.status import WORDS, PartitionStatus, statuses
from tests.sim.samples import WALL, life, record

LEVEL = Partition("billing-RETRY-5s", 3)
NOW = 70_000
"""Steady ms."""
PART = PartitionFacts(LEVEL, "5s", 5_000, 40, 40, 2, 0, 6, None, "", closing=False, suspect=False)
"""A partition of a level of 5 s."""


def status_of(part: PartitionFacts) -> PartitionStatus:
    facts = LaneFacts({LEVEL: part}, {}, 6, {})
    (status,) = statuses(facts, Standing(), Now(WALL, NOW))
    return status


def shown(state: str, due: int | None = None, late: int | None = None) -> PartitionStatus:
    return PartitionStatus("billing-RETRY-5s", 3, "5s", state, 40, 2, 6, due, late)


def test_an_open_one_is_shown_with_its_counts() -> None:
    assert status_of(PART) == shown("fetching")


@pytest.mark.parametrize(("at", "left"), [(NOW + 900, 900), (NOW, 0), (NOW - 900, 0)])
def test_one_that_waits_says_for_how_long(at: int, left: int) -> None:
    assert status_of(PART._replace(pause=Pause(41, at, Because.NOT_DUE))) == shown("not due", left)


@pytest.mark.parametrize("because", [because for because in Because if because is not Because.NOT_DUE])
def test_one_that_is_paused_for_another_reason_says_that(because: Because) -> None:
    assert status_of(PART._replace(pause=Pause(41, NOW + 900, because))) == shown(WORDS[because])


def test_what_keeps_it_most_is_told_first() -> None:
    worst = PART._replace(pause=Pause(41, NOW, Because.AT_BOUND), suspect=True)
    assert status_of(worst) == shown("suspect")
    worst = worst._replace(blocked="topic-authorization-failed")
    assert status_of(worst) == shown("stopped: topic-authorization-failed")
    assert status_of(worst._replace(closing=True)) == shown("closing")


def test_a_record_is_due_after_its_level_and_not_before_its_own_time() -> None:
    part = LanePartition(LEVEL, 1, ProgressTracker(Progress(40)), 5_000, "5s")
    assert part.due(record(timestamp=WALL)) == WALL + 5_000
    assert part.due(record(timestamp=WALL, life=life(due_at=WALL + 1))) == WALL + 5_000
    assert part.due(record(timestamp=WALL, life=life(due_at=WALL + 9_000))) == WALL + 9_000
