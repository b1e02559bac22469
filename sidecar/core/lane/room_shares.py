"""Keep one flow from filling the room of a lane: records that nobody takes would keep all other flows out.

While a lane is more than half full, each topic may have a part of half of the room, and each of its partitions a part
of that (`LaneMemory.share_of`). What a partition gets done within two seconds it may have in any case. A lane of a fast
service is full nearly always, because the consumer fills it at once, and nobody waits for long. To pause partitions
there would cost more than it is worth, since a pause drops what the client has fetched.

If a fast partition hangs when the lane is full, it lets go of what waits in memory, and fetches a share of it again.
Where a limit of its topic keeps a partition waiting (`topic_turns.py`), it lets go of what is above its share, and
keeps the rest: at a low rate what was fetched again would be let go again at each look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.partition import Because, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.suspicion import Stage
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import NEVER, Now, Partition

LOOK_EVERY_MS = 500
"""ms between two looks at a lane that is more than half full. A flow that comes to a full lane waits that long, or
twice: a due retry must not be late by more than a second for it."""
LOOK_AT_MOST_MS = 100
"""ms between two looks at least, while records come: so soon a fast partition is known to be fast."""
FULL = 8
"""One part in this many of the room is what a full lane may have free: the last records that came did not fit."""


class RoomShares:
    """The looks at what each partition of a lane gets done, and what follows from them.

    Invariant: while the lane is more than half full, a time to look at it is set.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        memory: LaneMemory,
        waiting: WaitingRecords,
        paused: PausedPartitions,
        dispatch: Callable[[Now], None],
    ) -> None:
        """`dispatch`: sends what may go out."""
        self.alarm_ms = NEVER
        """The steady time (ms) of the next look."""
        self._partitions, self._memory, self._waiting, self._paused = partitions, memory, waiting, paused
        self._dispatch = dispatch
        self._looked_at_ms = 0

    def admitted(self, now: Now) -> None:
        """Note that records were admitted."""
        if now.steady_ms - self._looked_at_ms >= LOOK_AT_MOST_MS:
            self._look(now)
        elif self.alarm_ms == NEVER and self._memory.more_than_half:
            self.alarm_ms = self._looked_at_ms + LOOK_EVERY_MS

    def tick(self, now: Now) -> None:
        """Look at the lane if it is time to."""
        if now.steady_ms >= self.alarm_ms:
            self._look(now)

    def _look(self, now: Now) -> None:
        """See what each partition has got done, and make room if the lane is full of one that hangs."""
        memory, lasted_ms, self._looked_at_ms = self._memory, now.steady_ms - self._looked_at_ms, now.steady_ms
        for partition in self._partitions.values():
            partition.look(lasted_ms)
        if memory.taken > memory.room - memory.room // FULL and len(self._partitions) > 1:
            self._make_room(now)
        self.alarm_ms = now.steady_ms + LOOK_EVERY_MS if memory.more_than_half else NEVER

    def _make_room(self, now: Now) -> None:
        """Let go what waits of partitions that hold more than their share; it is fetched again."""
        self._dispatch(now)  # what may go out is not let go: else it would be fetched, and let go, for ever
        shares = {source: self._memory.share_of(partition) for source, partition in self._partitions.items()}
        for source, partition in self._partitions.items():
            # Where its progress is too long for the brokers, what it has in memory must end.
            stays = partition.blocked or partition.closing or _needs_care(partition)
            stays = stays or partition.under is not None  # a queue's records are bounded by themselves
            if stays or partition.load <= shares[source]:
                continue
            # With nothing out it may have its one record, and sends it as soon as the pace, or its topic's limit,
            # allows.
            if self._waiting.ready.at_rest(source):
                self._let_go(partition, now, self._first_above(partition, shares[source]))
            elif partition.in_flight > 0:
                self._let_go(partition, now, 0)

    def _first_above(self, partition: LanePartition, share: int) -> int:
        """Return the offset from which on the waiting records of a partition are above its share: not its first one."""
        records = self._waiting.ready_or_behind(partition.source)
        free_bytes = share - partition.load + sum(record.weight for record in records)
        for number, record in enumerate(records):
            free_bytes -= record.weight
            if number and free_bytes < 0:
                return record.offset
        return NEVER

    def _let_go(self, partition: LanePartition, now: Now, from_offset: int) -> None:
        records = self._waiting.take_back_ready(partition.source, from_offset)
        if not records:
            return
        self._memory.add(partition, -sum(record.weight for record in records))
        self._paused.let_go(partition, records, now.steady_ms, Because.SHARED)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(
            not self._memory.more_than_half or self.alarm_ms != NEVER, "a lane that is more than half full is looked at"
        )


def _needs_care(partition: LanePartition) -> bool:
    """Return whether records of it are suspects: what would not be read yet might be one, and the care had no end.

    Such a partition has taken no more than its share, because nothing of it was done before (`crash_gate.py`).
    """
    return partition.suspicion is not None and partition.suspicion.stage is not Stage.FRESH
