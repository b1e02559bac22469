"""The way of one wait through the level topics, judged by when its copies were written (contract 2.4).

How many hops a wait has depends on the milliseconds that each of them is late. Whether each hop is right does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.proof.evidence import Copy, Evidence
from tests.support.proof.invariants import GRAIN

LATEST = 1_000
"""ms. By how much a level may be longer than the remaining wait, and never by more than a ninth of that wait."""


def levels_of(copies: Sequence[Copy]) -> list[str]:
    """The levels as their topics name them."""
    return [copy.topic.rpartition("-")[2] for copy in copies]


def check_way(evidence: Evidence, copies: Sequence[Copy], wait: int) -> None:
    """Fail unless each copy waits in the longest level that fits what was left of `wait` ms when that was decided.

    It was decided before the copy was written, and not before the level of the copy before it was over.
    """
    most = wait + GRAIN
    for copy in copies:
        level = evidence.delay_of(copy.topic)
        over = level - most
        assert over <= min(LATEST, most / 9), f"{copy} ends {over} ms late, in a level that is too long"
        left = copy.due - copy.row.timestamp - GRAIN
        longer = [other for other in evidence.group.delays if other > level and other - left <= min(LATEST, left / 9)]
        assert not longer, f"{copy} had {left} ms left for {longer}: this hop is shorter than it needs to be"
        most = copy.due - copy.row.timestamp - level + GRAIN
