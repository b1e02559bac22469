"""Partitions whose fetching is paused.

The next record is not due, the offset span or the bytes are full, or Kafka refuses their copies.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.partition import Because, LanePartition, Pause
from reconsume.sidecar.core.ports import Fetch
from reconsume.sidecar.core.record import NEVER, Record

CHECK_ROOM_EVERY_MS = 1_000
"""ms between checks of a partition that waits for room. What it may have depends on the pace and on other partitions,
and these do not know who waits."""


class PausedPartitions:
    """Pause and resume partitions.

    The client has no query for "is paused": `LanePartition.paused` is the only memory of it. A pause gets another time
    only here, so that `alarm_ms` follows: the partition may have been paused without a time, or until a later one.

    Invariant: each partition that is paused until a time is looked at then, or a second after the last look.
    """

    def __init__(self, fetch: Fetch, memory: LaneMemory) -> None:
        self._fetch, self._memory = fetch, memory
        self.alarm_ms = NEVER
        """The earliest steady time (ms) at which a paused partition may continue."""
        self._looked_at_ms = -NEVER

    def pause(self, partition: LanePartition, offset: int, at_ms: int, because: Because) -> None:
        """Stop fetching a partition; keep only the offset to continue from."""
        partition.pause(Pause(offset, at_ms, because))
        self._look_at(at_ms)
        self._fetch.pause(partition.source, partition.epoch)

    def let_go(self, partition: LanePartition, records: Iterable[Record], at_ms: int, because: Because) -> None:
        """Drop records that wait in memory; they are fetched again from the steady time `at_ms` on, as soon as the
        partition may continue. NEVER: once it is unblocked."""
        partition.let_go(records, self._paused_until(partition, at_ms, because))
        self.resume_if_ready(partition, at_ms)

    def fetch_held(self, partition: LanePartition, offsets: Iterable[int], steady_ms: int) -> None:
        """Fetch records that no operator holds any more, as soon as the partition may continue."""
        pause = partition.paused
        because = pause.because if pause is not None and partition.blocked else Because.HELD
        partition.fetch_held(offsets, self._paused_until(partition, steady_ms, because))
        self.resume_if_ready(partition, steady_ms)

    def go_on(self, partition: LanePartition, steady_ms: int) -> None:
        """Let a paused partition continue as soon as it may, whatever time its pause had."""
        if partition.paused is not None:
            partition.pause(self._paused_until(partition, steady_ms, partition.paused.because))
            self.resume_if_ready(partition, steady_ms)

    def _paused_until(self, partition: LanePartition, at_ms: int, because: Because) -> Pause:
        """Pause a partition, or return its pause with another time, at which it is looked at."""
        if partition.paused is None:
            self.pause(partition, partition.tracker.unread, at_ms, because)
        assert partition.paused is not None
        self._look_at(at_ms)
        return Pause(partition.paused.offset, at_ms, because)

    def _look_at(self, at_ms: int) -> None:
        self.alarm_ms = min(self.alarm_ms, at_ms)

    def block(self, partition: LanePartition, reason: str) -> None:
        """Deliver nothing more of a partition until `unblock`."""
        # Contract 7.6, 7.7: nothing of it is delivered, because its attempts could not be counted; others go on.
        partition.block(reason)
        if partition.paused is None:
            self.pause(partition, partition.tracker.unread, NEVER, Because.BLOCKED)

    def unblock(self, partition: LanePartition, steady_ms: int) -> None:
        """Unblock a partition. It continues only if no other reason keeps it paused."""
        partition.block("")
        if (pause := partition.paused) is None:
            return
        at_ms = steady_ms if pause.because is Because.BLOCKED else max(pause.at_ms, steady_ms)
        partition.pause(self._paused_until(partition, at_ms, pause.because))
        self.resume_if_ready(partition, steady_ms)

    def resume_if_ready(self, partition: LanePartition, steady_ms: int) -> None:
        """Let a partition continue if it may."""
        if partition.paused is not None and partition.may_fetch(steady_ms) and self._memory.lets_go_on(partition):
            offset = partition.resume()
            self._fetch.resume(partition.source, partition.epoch, offset, partition.seek_count)

    def resume_due(self, partitions: Iterable[LanePartition], steady_ms: int) -> None:
        """Let every partition continue whose time has come."""
        if steady_ms < self.alarm_ms:
            return
        self.alarm_ms, self._looked_at_ms = NEVER, steady_ms
        for partition in partitions:
            self.resume_if_ready(partition, steady_ms)
            if partition.paused is not None and not (partition.blocked or partition.closing):
                at_ms = partition.paused.at_ms
                self.alarm_ms = min(self.alarm_ms, at_ms if at_ms > steady_ms else steady_ms + CHECK_ROOM_EVERY_MS)

    def check(self, partitions: Iterable[LanePartition]) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for partition in partitions:
            pause = partition.paused
            if pause is not None and pause.at_ms != NEVER and not (partition.blocked or partition.closing):
                by_ms = max(pause.at_ms, self._looked_at_ms + CHECK_ROOM_EVERY_MS)
                ensure(self.alarm_ms <= by_ms, f"{partition.source} is paused, so a time to look at it is set")
