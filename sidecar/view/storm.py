"""A storm: one reason for most of the failures that the whole group has seen lately, and when it is told (contract §8).

Pure: counts and times come in as values; where they come from is the view's.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What a storm is: in the last `window` ms at least `least` failures of one reason, and `share` of all of them."""

    window: int
    share: float
    least: int


class Failures(NamedTuple):
    """Records that failed last within a window, by the reason of that failure, the most frequent reasons first."""

    total: int
    reasons: tuple[tuple[str, int], ...]


class Storm(NamedTuple):
    """One reason's failures, of all."""

    reason: str
    failures: int
    of: int


def storm_of(failures: Failures, rule: Rule) -> Storm | None:
    """The storm, if there is one."""
    if not failures.reasons:
        return None
    reason, count = failures.reasons[0]
    if count < rule.least or count < rule.share * failures.total:
        return None
    return Storm(reason, count, failures.total)


class Alarm:
    """Tells of a storm when it begins, and once a window while it lasts: a probe ends an outage, and must have time to.

    A group may well fail so all the time: deliveries then have a slow start once a window, and go on.
    """

    def __init__(self, window: int) -> None:
        """`window`: ms."""
        self._window = window
        self._told: int | None = None

    def rings(self, stormy: bool, steady: int) -> bool:
        """Whether it is to be told at a steady time (ms)."""
        if not stormy or (self._told is not None and steady - self._told < self._window):
            return False
        self._told = steady
        return True
