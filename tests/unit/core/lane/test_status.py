"""What `/status` shows of one partition, for each state that it may be in."""

from __future__ import annotations

import pytest

from sidecar.core.lane.partition import LanePartition, PartitionStatus, Pause, status_of
from sidecar.core.lane.suspicion import Suspicion
from sidecar.core.progress import Progress, Tracker
from sidecar.core.record import Partition
from tests.sim.samples import WALL, life, record

LEVEL = Partition("billing-RETRY-5s", 3)
NOW = 70_000
"""Steady ms."""


def part() -> LanePartition:
    """A partition of a level of 5 s."""
    return LanePartition(LEVEL, 1, Tracker(Progress(40)), 5_000, "5s", in_flight=2)


def shown(state: str, due: int | None = None) -> PartitionStatus:
    return PartitionStatus("billing-RETRY-5s", 3, "5s", state, 40, 2, 6, due)


def test_an_open_one_is_shown_with_its_counts() -> None:
    assert status_of(part(), 6, NOW) == shown("open")


@pytest.mark.parametrize(("at", "left"), [(NOW + 900, 900), (NOW, 0), (NOW - 900, 0)])
def test_one_that_waits_says_for_how_long(at: int, left: int) -> None:
    waits = part()
    waits.paused = Pause(41, at, "not due")
    assert status_of(waits, 6, NOW) == shown("not due", left)


def test_one_that_is_paused_for_another_reason_says_that() -> None:
    full = part()
    full.paused = Pause(41, NOW + 900, "no room")
    assert status_of(full, 6, NOW) == shown("no room")


def test_what_keeps_it_most_is_told_first() -> None:
    worst = part()
    worst.suspicion = Suspicion(2, "first")
    assert status_of(worst, 6, NOW) == shown("open"), "it is only watched"
    worst.suspicion = Suspicion(2, "alone")
    assert status_of(worst, 6, NOW) == shown("suspect")
    worst.blocked = "topic-authorization-failed"
    assert status_of(worst, 6, NOW) == shown("held: topic-authorization-failed")
    worst.closing = True
    assert status_of(worst, 6, NOW) == shown("closing")


def test_a_record_is_due_after_its_level_and_not_before_its_own_time() -> None:
    assert part().due(record(timestamp=WALL)) == WALL + 5_000
    assert part().due(record(timestamp=WALL, life=life(due_at=WALL + 1))) == WALL + 5_000
    assert part().due(record(timestamp=WALL, life=life(due_at=WALL + 9_000))) == WALL + 9_000
