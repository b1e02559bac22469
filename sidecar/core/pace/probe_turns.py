"""Partitions in turn: while the service fails, each has its probe, so that the poison of one delays no other."""

from __future__ import annotations

from itertools import count

from sidecar.core.pace.topic_turns import ReadyFlows
from sidecar.core.record import Partition


class ProbeTurns:
    """Track which partitions were probed least recently."""

    def __init__(self) -> None:
        self._last: dict[Partition, int] = {}
        self._numbers = count(1)

    def took(self, source: Partition) -> None:
        """Note that a probe of this partition has gone."""
        self._last[source] = next(self._numbers)

    def deal(self, ready: ReadyFlows) -> None:
        """Let the partitions of a lane take turns, the one that was probed least recently first.

        The records of a partition keep their order.
        """
        # Contract 8.2: the bad records of one partition hold up no other. One that was never probed comes first.
        ready.deal(lambda source: self._last.get(source, 0))
