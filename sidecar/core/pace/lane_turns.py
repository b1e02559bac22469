"""The turns of the lanes: each gets its part of the deliveries that are begun, and of the places, while all wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from sidecar.core.pace.flows import ReadyFlows

LaneT = TypeVar("LaneT")


class LaneTurn(Generic[LaneT]):
    """A lane, its weight, and how much it has had: the lane that has had least, by its weight, is next."""

    __slots__ = ("had", "lane", "ready", "weight")

    def __init__(self, lane: LaneT, ready: ReadyFlows, weight: int) -> None:
        self.lane, self.ready, self.weight = lane, ready, weight
        self.had = 0.0
        """The records that it has begun, divided by its weight."""

    def took(self, records: int, waiting: Collection[LaneTurn[LaneT]]) -> None:
        """Note that it begins so many records while those of `waiting` have records too.

        A lane that could not go in its turn, or had no records, makes up for one turn of this lane and no more: what it
        missed before is nothing that the others owe it.
        """
        self.had += records / self.weight
        for other in waiting:
            other.had = max(other.had, self.had - 2 * records / self.weight)


def shares_of(waiting: list[LaneTurn[LaneT]], limit: int) -> list[tuple[LaneTurn[LaneT], int]]:
    """Return the lanes that have records, the next one first, each with its share of the places; at least one."""
    if len(waiting) == 1:
        return [(waiting[0], limit)]
    weights = sum(turn.weight for turn in waiting)
    return [(turn, max(1, -(-limit * turn.weight // weights))) for turn in sorted(waiting, key=lambda turn: turn.had)]
