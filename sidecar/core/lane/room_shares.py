"""Keep one flow from filling the room of a lane: records that nobody takes would keep all other flows out.

    open    the room is for whoever comes first: it turns over within seconds, or half of it is empty
    shared  each topic may have a part of half of the room, and each of its partitions a part of that

A lane of a fast service is full nearly always, because the consumer fills it at once, and nobody waits: what is in it
is done within a second or two. To pause partitions there would cost more than it is worth, since a pause drops what
the client has fetched. So the room is shared only where it is more than half full and turns over more slowly.

If the lane is full by then, flows with more than their share let go of what waits in memory, and fetch it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.core.invariant import ensure
from sidecar.core.lane.memory import LaneMemory
from sidecar.core.lane.partition import Because, LanePartition, Pause
from sidecar.core.lane.paused import PausedPartitions
from sidecar.core.lane.waiting import WaitingRecords
from sidecar.core.record import NEVER, Now, Partition

LOOK_EVERY_MS = 500
"""ms between two looks at a lane that is more than half full. A flow that comes to a full lane waits that long, or
twice: a due retry must not be late by more than a second for it."""
SLOW = 2
"""The lane is slow if it takes more than this many seconds to turn over. Faster, a flow waits for room no longer than
it would for its share; slower, a pause is rare enough to cost nothing."""
KEPT_FOR_MS = 5_000
"""ms for which the room stays shared after records were let go. They are not fetched again at once, and meanwhile the
lane is nearly empty: it would be filled, and emptied, once a second."""
FULL = 8
"""One part in this many of the room is what a full lane may have free: the last records that came did not fit."""


class RoomShares:
    """Whether the room of a lane is shared, and what follows from it.

    Invariant: while the lane is more than half full, or its room is shared, a time to look at it is set.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        memory: LaneMemory,
        waiting: WaitingRecords,
        paused: PausedPartitions,
    ) -> None:
        self.alarm = NEVER
        """The steady time (ms) of the next look."""
        self._partitions, self._memory, self._waiting, self._paused = partitions, memory, waiting, paused
        self._done_before = self._since = self._kept_until = 0

    def admitted(self, now: Now) -> None:
        """Note that records were admitted."""
        if self.alarm == NEVER and self._memory.more_than_half:
            self._begin(now)

    def tick(self, now: Now) -> None:
        """Share the room, or open it again, if it is time to look."""
        if now.steady < self.alarm:
            return
        memory, lasted = self._memory, max(1, now.steady - self._since)
        slow = (self._done - self._done_before) * SLOW * 1_000 < memory.room * lasted
        if memory.more_than_half and slow and len(self._partitions) > 1:
            memory.shared = True
        elif now.steady >= self._kept_until and (not slow or memory.taken < memory.room // 4):
            memory.shared = False
        if memory.shared and memory.taken > memory.room - memory.room // FULL:
            self._make_room(now)
        self.alarm = NEVER
        if memory.shared or memory.more_than_half:
            self._begin(now)

    @property
    def _done(self) -> int:
        return self._memory.admitted - self._memory.load

    def _begin(self, now: Now) -> None:
        self.alarm, self._since, self._done_before = now.steady + LOOK_EVERY_MS, now.steady, self._done

    def _make_room(self, now: Now) -> None:
        """Let go what waits of partitions that hold more than their share; it is fetched again."""
        self._kept_until = now.steady + KEPT_FOR_MS
        shares = {source: self._memory.share_of(partition) for source, partition in self._partitions.items()}
        for source, partition in self._partitions.items():
            if partition.load > shares[source] and not (partition.blocked or partition.closing):
                self._let_go(partition, now)

    def _let_go(self, partition: LanePartition, now: Now) -> None:
        # What a suspect partition keeps back waits for another reason too (`crash_gate.py`).
        records = self._waiting.take_back(partition.source, withheld=False)
        if not records:
            return
        if partition.paused is None:
            self._paused.pause(partition, partition.tracker.next, now.steady, Because.SHARED)
        offset = partition.tracker.next if partition.paused is None else partition.paused.offset
        self._memory.let_go(partition, sum(record.weight for record in records))
        partition.let_go(records, Pause(offset, now.steady, Because.SHARED))
        self._paused.resume_if_ready(partition, now.steady)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        looks = self._memory.shared or self._memory.more_than_half
        ensure(not looks or self.alarm != NEVER, "a lane that is more than half full is looked at")
