"""The clock's promise to the core: what waits by the steady time is never early by the wall time."""

from __future__ import annotations

import time

from sidecar.edges.clock import now

WAIT = 3


def test_a_wait_by_the_steady_time_is_never_early_by_the_wall_time() -> None:
    """Many waits, begun at every place within a millisecond."""
    for _ in range(100):
        begin = now()
        while now().steady < begin.steady + WAIT:
            pass
        assert time.time_ns() >= (begin.wall + WAIT) * 1_000_000


def test_the_wall_time_is_the_present_one() -> None:
    """Cut to milliseconds, never more behind: a wait counts from the failure."""
    for _ in range(100):
        before = time.time_ns() // 1_000_000
        assert before <= now().wall <= time.time_ns() // 1_000_000
