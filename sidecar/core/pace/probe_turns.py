"""Partitions in turn: while the service fails, each has its probe, so that the poison of one delays no other.

A probe that hangs has its place when the outage is over, too. So the reserve (`shares.py`) holds for probes as well:
what hangs of one topic or partition must leave a way for the others. Without a reserve, probes go whatever is out.
"""

from __future__ import annotations

from itertools import count

from reconsume.sidecar.core.pace.shares import MostPlaces
from reconsume.sidecar.core.pace.topic_turns import Flow, ReadyFlows
from reconsume.sidecar.core.record import Partition, Record


class ProbeTurns:
    """Track which partitions were probed least recently."""

    def __init__(self) -> None:
        self._last: dict[Partition, int] = {}
        self._numbers = count(1)

    def took(self, source: Partition) -> None:
        """Note that a probe of this partition has gone."""
        self._last[source] = next(self._numbers)

    def deal(self, ready: ReadyFlows, most: MostPlaces) -> None:
        """Let the partitions of a lane take turns, the one that was probed least recently first; behind all those that
        have what they may take alone.

        The records of a partition keep their order.
        """
        # Contract 8.2: the bad records of one partition hold up no other. One that was never probed comes first.
        ready.deal(lambda flow: (not most.leaves_reserve(flow), self._last.get(flow.source, 0)))

    @staticmethod
    def take(ready: ReadyFlows, most: MostPlaces) -> tuple[Flow, Record] | None:
        """Remove and return the next record of a lane that was dealt, with its flow; None if none may go."""
        # Contract 8.8: the reserve is never taken by one flow alone.
        return ready.take() if ready and most.leaves_reserve(ready.turns[0].turns[0]) else None
