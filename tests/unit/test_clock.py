"""The clock's promise to the core: what waits by the steady time is never early by the wall time."""

from __future__ import annotations

import time

import pytest

from reconsume.sidecar.clock import Clock, now, utc

WAIT = 3
MS, SECOND = 1_000_000, 1_000_000_000


class Clocks:
    """A wall and a steady clock that stand still until they are told."""

    def __init__(self, wall: int) -> None:
        self.wall_ms, self.steady_ms = wall, 5 * SECOND
        self.clock = Clock(lambda: self.wall_ms, lambda: self.steady_ms)

    def pass_by(self, ns: int) -> None:
        self.wall_ms += ns
        self.steady_ms += ns


def test_a_wait_by_the_steady_time_is_never_early_by_the_wall_time() -> None:
    """Many waits, begun at every place within a millisecond."""
    for _ in range(100):
        begin = now()
        while now().steady_ms < begin.steady_ms + WAIT:
            pass
        assert time.time_ns() >= (begin.wall_ms + WAIT) * MS


def test_the_wall_time_is_the_present_one() -> None:
    """Cut to milliseconds, never more behind: a wait counts from the failure."""
    for _ in range(100):
        before = (time.time_ns() - 20_000) // MS
        assert before <= now().wall_ms <= time.time_ns() // MS


@pytest.mark.parametrize("rest", [0, 1, 999, 1_000, 1_001, 500_000, 999_999])
def test_both_times_change_at_the_same_moment(rest: int) -> None:
    clocks = Clocks(1_700_000_000 * SECOND + rest)
    seen = set()
    for _ in range(3_000):
        clocks.pass_by(1_009)
        moment = clocks.clock.now()
        assert clocks.wall_ms - 2 * MS < moment.wall_ms * MS <= clocks.wall_ms
        seen.add(moment.wall_ms - moment.steady_ms)
    assert len(seen) == 1


@pytest.mark.parametrize("step", [-3600 * SECOND, -700_000, -400_000, 400_000, 700_000, 7 * SECOND + 999_999])
def test_a_wall_clock_that_is_set_is_followed_within_a_second_and_the_steady_time_goes_on_evenly(step: int) -> None:
    clocks = Clocks(1_700_000_000 * SECOND)
    before = clocks.clock.now()
    clocks.wall_ms += step
    clocks.pass_by(SECOND)
    after = clocks.clock.now()
    assert 0 < clocks.wall_ms - after.wall_ms * MS <= MS + 1_000
    assert abs(after.steady_ms - before.steady_ms - 1_000) <= 1


def test_a_difference_that_is_measured_a_little_otherwise_changes_nothing() -> None:
    clocks = Clocks(1_700_000_000 * SECOND + 500)
    before = clocks.clock.now()
    clocks.wall_ms += 9_000
    clocks.pass_by(SECOND)
    after = clocks.clock.now()
    assert (after.wall_ms - before.wall_ms, after.steady_ms - before.steady_ms) == (1_000, 1_000)


def test_a_time_that_nobody_can_show_is_the_number_that_it_is() -> None:
    assert utc(1_795_405_173_482, "%Y-%m-%dT%H:%M:%SZ") == "2026-11-23T03:39:33Z"
    assert [utc(at, "%Y") for at in (2**63, -(2**63))] == [str(2**63), str(-(2**63))]
