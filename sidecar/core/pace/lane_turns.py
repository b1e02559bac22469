"""The turns of the lanes: each gets its part of the deliveries that are begun, while others have ready records too."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from reconsume.sidecar.core.pace.topic_turns import ReadyFlows

HAD = attrgetter("had")
"""What a lane has had, by its weight: the lane that has had least is next."""


def took(lane_flows: ReadyFlows, records: int, waiting_lanes: Iterable[ReadyFlows]) -> None:
    """Note that a lane begins so many records while those of `waiting_lanes` have records too.

    A lane that could not go in its turn, or had no records, makes up for one turn of this lane and no more: what it
    missed before is nothing that the others owe it.
    """
    lane_flows.had += records / lane_flows.weight
    least = lane_flows.had - 2 * records / lane_flows.weight
    for other_lane in waiting_lanes:
        if other_lane.had < least:
            other_lane.had = least
