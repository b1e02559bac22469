"""Detect a storm: one reason for most of the records of the whole group that failed lately (contract 8.7).

Pure: counts come in as values from the view.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """The definition of a storm: of the records that failed in the last `window` ms, at least `least`, and `share` of
    all, failed last for one reason. A record counts once, however often it failed."""

    window: int
    share: float
    least: int


RULE = Rule(window=5 * 60_000, share=0.5, least=100)
"""What counts as a storm in every group."""


class Failures(NamedTuple):
    """Records whose last failure was within a window, by its reason. The most frequent reasons come first."""

    total: int
    reasons: tuple[tuple[str, int], ...]


class Storm(NamedTuple):
    """How many records failed last for one reason, out of all that failed."""

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
