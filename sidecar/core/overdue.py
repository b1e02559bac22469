"""How late the records of a lane's levels are, by two measures: the records in memory, and how far each log is due.

The second comes from outside (`kafka/consumer/due_offsets.py`): for each partition the first offset that is not due
yet. A partition is overdue if its first open offset is below that one and does not move from one check to the next.

The cause need not be known: the client may not fetch the partition, or no part of the lane may have the record any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from sidecar.core.lane.delay_queue import RESUME_EARLY
from sidecar.core.lane.lane import Lane
from sidecar.core.lane.partition import LanePartition, PartitionStatus
from sidecar.core.record import Now, Partition, Record


class Stand(NamedTuple):
    """A due offset that has not moved.

    `since`: the steady time (ms) of the check that saw it first. `seen`: the steady time of the check that saw it last.
    """

    first: int
    since: int
    seen: int


class Standing:
    """Track what the checks of one lane's due offsets have shown."""

    def __init__(self) -> None:
        self.worst = 0
        """ms by which the most overdue record was late at the last check; any thread may read it."""
        self._stands: dict[Partition, Stand] = {}

    def looked(self, heads: Mapping[Partition, int], lane: Lane, now: Now) -> None:
        """Check the first offset of each partition that is not due yet (`heads`) against the state of the lane."""
        asked_to_wait = {(record.source, record.offset) for record in lane.delayed.later(now.steady)}
        stands: dict[Partition, Stand] = {}
        for source, part in lane.ownership.partitions.items():
            first = front(part)
            # A record that the service has, or asked to get later, is not stuck. Each delivery has a timeout.
            if part.level_delay is None or part.in_flight or (source, first) in asked_to_wait:
                continue
            if first < heads.get(source, first):
                stands[source] = self._stand(source, first, now.steady)
        self._stands = stands
        self.worst = max(overdue(lane, self, now).values(), default=0)

    def _stand(self, source: Partition, first: int, steady: int) -> Stand:
        old = self._stands.get(source)
        return Stand(first, old.since if old is not None and old.first == first else steady, steady)

    def stuck(self, part: LanePartition, steady: int) -> int:
        """Return for how long (ms) the first due offset has not moved, by two checks at least; else 0."""
        stand = self._stands.get(part.source)
        if stand is None or stand.since == stand.seen or part.in_flight or stand.first != front(part):
            return 0
        return steady - stand.since


def front(part: LanePartition) -> int:
    """Return the first offset of which anything is still to come.

    A paused partition with nothing open was read up to the offset where it continues: below that are only transaction
    markers.
    """
    first = part.tracker.first
    return max(first, part.paused.offset) if part.paused is not None and first == part.tracker.next else first


def overdue(lane: Lane, standing: Standing, now: Now) -> dict[Partition, int]:
    """Return by how many ms the most overdue record of each level partition is late; only partitions that have one."""
    late: dict[Partition, int] = {}
    parts = {source: part for source, part in lane.ownership.partitions.items() if part.level_delay is not None}
    for source, due in earliest(parts, lane, now.steady):
        late[source] = max(now.wall - due, late.get(source, 0))
    for source, part in parts.items():
        late[source] = max(late.get(source, 0), missed(part, now.steady), standing.stuck(part, now.steady))
    return {source: ms for source, ms in late.items() if ms > 0}


def earliest(parts: Mapping[Partition, LanePartition], lane: Lane, steady: int) -> Iterator[tuple[Partition, int]]:
    """Yield the partition and the due time (epoch ms) of each record that waits in memory although it is due.

    It waits for an in-flight slot, or for a topic that accepts its copy.
    """
    if not parts:
        return
    refused: Iterable[Record] = (held.refusal.entry.record for held in lane.outbox.held.values())
    withheld = (part.withheld for part in parts.values())
    for record in chain(lane.ready, lane.delayed.over(steady), refused, *withheld):
        part = parts.get(record.source)
        if part is not None and record.again == 0:  # an attempt in place has no due time of its own
            yield record.source, part.due(record)


def missed(part: LanePartition, steady: int) -> int:
    """Return for how many ms a partition has stayed paused after its next record was due."""
    parked = part.paused
    return 0 if parked is None or parked.because != "not due" else max(0, steady - parked.at - RESUME_EARLY)


def statuses(lane: Lane, standing: Standing, now: Now) -> list[PartitionStatus]:
    """Return the present state of every partition, with how late it is; a stuck partition says where."""
    late, parts = overdue(lane, standing, now), lane.ownership.partitions
    waiting = {source for source, _ in earliest(parts, lane, now.steady)}
    shown = []
    for status in lane.ownership.status(now.steady):
        source = Partition(status.topic, status.partition)
        state = status.state
        # Any other state gives its reason. A record in memory waits for the pace, which has a state of its own.
        if state in ("open", "not due") and source not in waiting and standing.stuck(parts[source], now.steady):
            state = f"stuck: {where(parts[source])}"
        shown.append(status._replace(state=state, overdue_for=late.get(source)))
    return shown


def where(part: LanePartition) -> str:
    """Return where the first due record of a stuck partition must be."""
    if part.paused is not None:
        return "parked"
    if part.tracker.first == part.tracker.next:
        return "not read"
    return "not committed" if part.unsettled else "no outcome"
