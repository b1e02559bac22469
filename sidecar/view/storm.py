"""Detect a storm: one reason for most of the failures that the whole group has seen lately (contract 8.7).

Pure: counts and times come in as values from the view. `Alarm` decides when a storm is signalled.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """The definition of a storm: in the last `window` ms at least `least` failures of one reason, and `share` of all
    failures."""

    window: int
    share: float
    least: int


class Failures(NamedTuple):
    """Records whose last failure was within a window, by its reason. The most frequent reasons come first."""

    total: int
    reasons: tuple[tuple[str, int], ...]


class Storm(NamedTuple):
    """The failures of one reason, out of all."""

    reason: str
    failures: int
    of: int


def storm_of(failures: Failures, rule: Rule) -> Storm | None:
    """Return the storm; None if there is none."""
    if not failures.reasons:
        return None
    reason, count = failures.reasons[0]
    if count < rule.least or count < rule.share * failures.total:
        return None
    return Storm(reason, count, failures.total)


class Alarm:
    """Signal a storm when it begins, and once per window while it lasts.

    A probe ends an outage and must have time for that. A group may fail in this way all the time. Deliveries then have
    a slow start once per window, and continue.
    """

    def __init__(self, window: int) -> None:
        """Remember the window, in ms."""
        self._window = window
        self._rang_at: int | None = None

    def rings(self, stormy: bool, steady: int) -> bool:
        """Whether to signal the storm at a steady time (ms)."""
        if not stormy or (self._rang_at is not None and steady - self._rang_at < self._window):
            return False
        self._rang_at = steady
        return True
