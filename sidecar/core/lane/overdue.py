"""How late the records of a lane's levels are: by what the lane has in memory, and by how far each level's log is due.

The second is told from outside (`kafka/consumer/due_offsets.py`): for each partition the first offset that is not due
yet. A partition whose first open offset is below it, and does not move from one look to the next, is overdue for
whatever reason: a partition that the client does not fetch, a record that no part of the lane has any more. No cause
need be known for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple, Protocol

from sidecar.core.lane.delay_queue import RESUME_EARLY, DelayQueue
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.partition import PartitionState, PartitionStatus
from sidecar.core.record import Now, Partition, Record


class Parts(Protocol):
    """The partitions of a lane."""

    parts: dict[Partition, PartitionState]

    def status(self, steady: int) -> list[PartitionStatus]:
        """Every partition's present state."""


class Waiting(Protocol):
    """A lane, as far as records wait in it."""

    ready: deque[Record]
    delayed: DelayQueue
    outbox: Outbox

    @property
    def ownership(self) -> Parts:
        """Its partitions."""


class Stand(NamedTuple):
    """A due offset that has not moved: since the look at `since`, seen last by the look at `seen` (steady ms)."""

    first: int
    since: int
    seen: int


class Standing:
    """What the looks at the heads of one lane's partitions have shown."""

    def __init__(self) -> None:
        self.worst = 0
        """ms by which the most overdue record was late at the last look; any thread may read it."""
        self._stands: dict[Partition, Stand] = {}

    def looked(self, heads: Mapping[Partition, int], lane: Waiting, now: Now) -> None:
        """Take in the first offset of each partition that is not due yet."""
        asked_to_wait = {(record.source, record.offset) for record in lane.delayed.later(now.steady)}
        stands: dict[Partition, Stand] = {}
        for source, part in lane.ownership.parts.items():
            first = front(part)
            # What the service has, or has asked for later, is no wedge; who gets no answer for ever has a timeout.
            if part.level_delay is None or part.in_flight or (source, first) in asked_to_wait:
                continue
            if first < heads.get(source, first):
                stands[source] = self._stand(source, first, now.steady)
        self._stands = stands
        self.worst = max(overdue(lane, self, now).values(), default=0)

    def _stand(self, source: Partition, first: int, steady: int) -> Stand:
        old = self._stands.get(source)
        return Stand(first, old.since if old is not None and old.first == first else steady, steady)

    def stuck(self, part: PartitionState, steady: int) -> int:
        """For how long (ms) its first due offset has stood, by two looks at least; else 0."""
        stand = self._stands.get(part.source)
        if stand is None or stand.since == stand.seen or part.in_flight or stand.first != front(part):
            return 0
        return steady - stand.since


def front(part: PartitionState) -> int:
    """The first offset of which anything is still to come.

    A parked partition with nothing open was read up to where it goes on: below that are transaction markers alone.
    """
    first = part.tracker.first
    return max(first, part.paused.offset) if part.paused is not None and first == part.tracker.next else first


def overdue(lane: Waiting, standing: Standing, now: Now) -> dict[Partition, int]:
    """By how many ms the most overdue record of each level partition is late; only those where one is."""
    late: dict[Partition, int] = {}
    parts = {source: part for source, part in lane.ownership.parts.items() if part.level_delay is not None}
    for source, due in earliest(parts, lane, now.steady):
        late[source] = max(now.wall - due, late.get(source, 0))
    for source, part in parts.items():
        late[source] = max(late.get(source, 0), missed(part, now.steady), standing.stuck(part, now.steady))
    return {source: ms for source, ms in late.items() if ms > 0}


def earliest(parts: Mapping[Partition, PartitionState], lane: Waiting, steady: int) -> Iterator[tuple[Partition, int]]:
    """When each record was due (epoch ms) that waits for a place in flight, or for a topic that takes its failure."""
    if not parts:
        return
    refused: Iterable[Record] = (held.refusal.entry.record for held in lane.outbox.held.values())
    withheld = (part.withheld for part in parts.values())
    for record in chain(lane.ready, lane.delayed.over(steady), refused, *withheld):
        part = parts.get(record.source)
        if part is not None and record.again == 0:  # a try in place has no due time of its own
            yield record.source, part.due(record)


def missed(part: PartitionState, steady: int) -> int:
    """By how many ms a partition that is parked until its head is due should have gone on already."""
    parked = part.paused
    return 0 if parked is None or parked.because != "not due" else max(0, steady - parked.at - RESUME_EARLY)


def statuses(lane: Waiting, standing: Standing, now: Now) -> list[PartitionStatus]:
    """Every partition's present state, with how late it is; one that is stuck says where."""
    late, parts = overdue(lane, standing, now), lane.ownership.parts
    waiting = {source for source, _ in earliest(parts, lane, now.steady)}
    shown = []
    for status in lane.ownership.status(now.steady):
        source = Partition(status.topic, status.partition)
        state = status.state
        # Any other state says what keeps it; and what waits in memory waits for the pace, which has its own.
        if state in ("open", "not due") and source not in waiting and standing.stuck(parts[source], now.steady):
            state = f"stuck: {where(parts[source])}"
        shown.append(status._replace(state=state, overdue_for=late.get(source)))
    return shown


def where(part: PartitionState) -> str:
    """Where the first due record of a partition must be that nothing comes of."""
    if part.paused is not None:
        return "parked"
    if part.tracker.first == part.tracker.next:
        return "not read"
    return "not committed" if part.unsettled else "no outcome"
