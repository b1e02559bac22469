"""Partitions whose fetching is paused.

The next record is not due, the offset span or the bytes are full, or Kafka refuses their copies.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.core.lane.memory import LaneMemory
from sidecar.core.lane.partition import Because, LanePartition, Pause
from sidecar.core.ports import Fetch
from sidecar.core.record import NEVER, Record

LOOK_EVERY = 1_000
"""ms between checks of a partition that waits for room. What it may have depends on the pace and on other partitions,
and these do not know who waits."""


class PausedPartitions:
    """Pause and resume partitions. The client has no query for "is paused", so this is the only memory of it."""

    def __init__(self, fetch: Fetch, memory: LaneMemory) -> None:
        self._fetch, self._memory = fetch, memory
        self.alarm = NEVER
        """The earliest steady time (ms) at which a paused partition may continue."""

    def pause(self, part: LanePartition, offset: int, at: int, because: Because) -> None:
        """Stop fetching a partition; keep only the offset to continue from."""
        part.pause(Pause(offset, at, because))
        self.alarm = min(self.alarm, at)
        self._fetch.pause(part.source, part.epoch)

    def block(self, part: LanePartition, reason: str) -> None:
        """Deliver nothing more of a partition until `unblock`."""
        part.block(reason)
        if part.paused is None:
            first = min((part.tracker.next, *part.tracker.left))  # an earlier block may have dropped some of them
            self.pause(part, first, NEVER, Because.BLOCKED)

    def unblock(self, part: LanePartition, steady: int) -> list[Record]:
        """Unblock a partition, and return the records that it withheld.

        It continues only if no other reason keeps it paused.
        """
        part.block("")
        self.alarm = steady
        if part.paused is not None and part.paused.because is Because.BLOCKED:
            part.pause(part.paused._replace(at=steady))
        self.resume_if_ready(part, steady)
        return part.take_withheld()

    def resume_if_ready(self, part: LanePartition, steady: int) -> None:
        """Let a partition continue if it may."""
        if part.paused is not None and part.may_fetch(steady) and self._memory.lets_go_on(part):
            offset = part.resume()
            self._fetch.resume(part.source, part.epoch, offset, part.seek_count)

    def resume_due(self, parts: Iterable[LanePartition], steady: int) -> None:
        """Let every partition continue whose time has come."""
        if steady < self.alarm:
            return
        self.alarm = NEVER
        for part in parts:
            self.resume_if_ready(part, steady)
            if part.paused is not None and not (part.blocked or part.closing):
                self.alarm = min(self.alarm, part.paused.at if part.paused.at > steady else steady + LOOK_EVERY)
