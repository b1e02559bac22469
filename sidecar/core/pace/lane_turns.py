"""The turns of the lanes: each gets its part of the deliveries that are begun, while others have ready records too."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from sidecar.core.pace.flows import ReadyFlows

HAD = attrgetter("had")
"""What a lane has had, by its weight: the lane that has had least is next."""


def took(ready: ReadyFlows, records: int, waiting: Iterable[ReadyFlows]) -> None:
    """Note that a lane begins so many records while those of `waiting` have records too.

    A lane that could not go in its turn, or had no records, makes up for one turn of this lane and no more: what it
    missed before is nothing that the others owe it.
    """
    ready.had += records / ready.weight
    least = ready.had - 2 * records / ready.weight
    for other in waiting:
        if other.had < least:
            other.had = least
