"""When a record became done: the committed progress as the watch saw it, look by look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from tests.support.proof.evidence import PartitionName, Progress

NEVER = 1 << 62


class Look(NamedTuple):
    """The same progress in one look, or in several in a row.

    `first`: when the first of them had ended; `last`: when the last of them began (epoch ms).
    """

    first: int
    last: int
    progress: Progress


History: TypeAlias = Mapping[PartitionName, tuple[Look, ...]]


def extended(looks: list[Look], began: int, ended: int, progress: Progress) -> list[Look]:
    """The looks and one more."""
    if looks and looks[-1].progress == progress:
        return [*looks[:-1], looks[-1]._replace(last=began)]
    return [*looks, Look(ended, began, progress)]


def done_between(looks: tuple[Look, ...], offset: int) -> tuple[int, int]:
    """After when, and before when, the record at this offset became done (epoch ms).

    What was said of a former topic of the name is no word on this one: the last look that does not cover it counts.
    """
    after, before = -NEVER, NEVER
    for look in looks:
        if not look.progress.covers(offset):
            after, before = look.last, NEVER
        elif before == NEVER:
            before = look.first
    return after, before
