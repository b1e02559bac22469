"""Partitions that are not fetched for now: their head is far off, their span full, or their failures have no home."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.core.lane.partition import PartitionState, Pause
from sidecar.core.ports import Fetch
from sidecar.core.record import NEVER, Record


class PausedPartitions:
    """Parks partitions and sends them on. There is no "is paused" query in the client, so this is the only memory."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.alarm = NEVER
        """The earliest steady time (ms) at which a parked partition may go on."""

    def pause(self, part: PartitionState, offset: int, at: int, because: str) -> None:
        """Stop fetching; only the offset to go on from is kept."""
        part.paused = Pause(offset, at, because)
        self.alarm = min(self.alarm, at)
        self._fetch.pause(part.source, part.epoch)

    def block(self, part: PartitionState, reason: str) -> None:
        """Release nothing more of it until `restart`."""
        part.blocked = reason
        if part.paused is None:
            first = min((part.tracker.next, *part.tracker.left))  # some may have been let go at an earlier stop
            self.pause(part, first, NEVER, "stopped")

    def let_go(self, part: PartitionState, records: Iterable[Record]) -> None:
        """Forget records that a stopped partition has in memory; they are fetched again once it goes on."""
        assert part.paused is not None, "a stopped partition is parked"
        first = part.paused.offset
        for record in records:
            part.tracker.let_go(record.offset)
            first = min(first, record.offset)
        part.paused = Pause(first, NEVER, "stopped")

    def unblock_all(self, parts: Iterable[PartitionState], steady: int) -> list[Record]:
        """What stopped partitions is mended: they go on if nothing else keeps them; the records that they withheld."""
        released: list[Record] = []
        for part in parts:
            if part.blocked:
                self._resume(part, steady)
                released += part.withheld
                part.withheld.clear()
        return released

    def _resume(self, part: PartitionState, steady: int) -> None:
        part.blocked = ""
        if part.paused is not None and part.paused.because == "stopped":
            part.paused = part.paused._replace(at=steady)
        self.resume_if_ready(part, steady)

    def resume_if_ready(self, part: PartitionState, steady: int) -> None:
        """Let it go on if it may. The new turn tells what comes now from what was fetched before."""
        if part.paused is not None and part.may_fetch(steady):
            offset, part.paused, part.most = part.paused.offset, None, NEVER
            part.seek_count += 1
            self._fetch.resume(part.source, part.epoch, offset, part.seek_count)

    def resume_due(self, parts: Iterable[PartitionState], steady: int) -> None:
        """Let every partition go on whose time has come."""
        if steady < self.alarm:
            return
        self.alarm = NEVER
        for part in parts:
            self.resume_if_ready(part, steady)
            if part.paused is not None and part.paused.at > steady:
                self.alarm = min(self.alarm, part.paused.at)
