"""How late the records of a lane's levels are, by two measures: the records in memory, and how far each log is due.

The second comes from outside (`kafka/consumer/looks.py`): for each partition the first offset that is not due
yet. A partition is overdue if its first open offset is below that one and does not move from one check to the next.

The cause need not be known: the client may not fetch the partition, or no part of the lane may have the record any
more.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.fetching import RESUME_EARLY_MS
from reconsume.sidecar.core.partition import Because
from reconsume.sidecar.core.record import Now, Partition


class Stand(NamedTuple):
    """A due offset that has not moved.

    `since_ms`: the steady time (ms) of the check that saw it first. `checked_ms`: that of the last check.
    """

    first: int
    since_ms: int
    checked_ms: int


class Standing:
    """Track what the checks of one lane's due offsets have shown."""

    def __init__(self) -> None:
        self.worst = 0
        """ms by which the most overdue record was late at the last check; any thread may read it."""
        self._stands: dict[Partition, Stand] = {}

    def looked(
        self, heads: Mapping[Partition, int], facts: LaneFacts, put_off: Set[tuple[Partition, int]], now: Now
    ) -> None:
        """Check the first offset of each partition that is not due yet (`heads`) against the facts of the lane.

        `put_off`: partition and offset of the records in memory whose time has not come.
        """
        stands: dict[Partition, Stand] = {}
        for source, partition in facts.partitions.items():
            first = partition.front
            # A record that the service has, or asked to get later, is not stuck. Each delivery has a timeout.
            if (
                partition.level_delay_ms is None
                or partition.in_flight
                or (source, first) in put_off
                or partition.is_held
            ):
                continue
            if first < heads.get(source, first):
                stands[source] = self._stand(source, first, now.steady_ms)
        self._stands = stands
        self.worst = max(overdue(facts, self, now).values(), default=0)

    def _stand(self, source: Partition, first: int, steady_ms: int) -> Stand:
        old = self._stands.get(source)
        return Stand(first, old.since_ms if old is not None and old.first == first else steady_ms, steady_ms)

    def stuck(self, partition: PartitionFacts, steady_ms: int) -> int:
        """Return for how long (ms) the first due offset has not moved, by two checks at least; else 0."""
        stand = self._stands.get(partition.source)
        if stand is None or stand.since_ms == stand.checked_ms or partition.in_flight or stand.first != partition.front:
            return 0
        # Contract 10.4: what an operator holds is late by intent.
        if partition.is_held:
            return 0
        return steady_ms - stand.since_ms


def overdue(facts: LaneFacts, standing: Standing, now: Now) -> dict[Partition, int]:
    """Return by how many ms the most overdue record of each level partition is late; only partitions that have one."""
    late: dict[Partition, int] = {}
    for source, partition in facts.partitions.items():
        if partition.level_delay_ms is not None:
            in_memory = now.wall_ms - facts.due[source] if source in facts.due else 0
            late[source] = max(in_memory, missed(partition, now.steady_ms), standing.stuck(partition, now.steady_ms))
    return {source: ms for source, ms in late.items() if ms > 0}


def missed(partition: PartitionFacts, steady_ms: int) -> int:
    """Return for how many ms a partition has stayed paused after its next record was due."""
    pause = partition.pause
    return (
        0
        if pause is None or pause.because is not Because.NOT_DUE
        else max(0, steady_ms - pause.at_ms - RESUME_EARLY_MS)
    )
