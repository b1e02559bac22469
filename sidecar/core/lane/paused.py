"""Partitions that are not fetched for now: their head is far off, their span full, or their failures have no home."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.core.lane.partition import Assigned, Parking
from sidecar.core.ports import Fetch
from sidecar.core.record import NEVER, Record


class ParkingLot:
    """Parks partitions and sends them on. There is no "is paused" query in the client, so this is the only memory."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.alarm = NEVER
        """The earliest steady time (ms) at which a parked partition may go on."""

    def park(self, part: Assigned, offset: int, at: int, because: str) -> None:
        """Stop fetching; only the offset to go on from is kept."""
        part.parked = Parking(offset, at, because)
        self.alarm = min(self.alarm, at)
        self._fetch.pause(part.source, part.epoch)

    def stop(self, part: Assigned, reason: str) -> None:
        """Release nothing more of it until `restart`."""
        part.stopped = reason
        if part.parked is None:
            first = min((part.tracker.next, *part.tracker.left))  # some may have been let go at an earlier stop
            self.park(part, first, NEVER, "stopped")

    def let_go(self, part: Assigned, records: Iterable[Record]) -> None:
        """Forget records that a stopped partition has in memory; they are fetched again once it goes on."""
        assert part.parked is not None, "a stopped partition is parked"
        first = part.parked.offset
        for record in records:
            part.tracker.let_go(record.offset)
            first = min(first, record.offset)
        part.parked = Parking(first, NEVER, "stopped")

    def restart(self, parts: Iterable[Assigned], steady: int) -> list[Record]:
        """What stopped partitions is mended: they go on if nothing else keeps them; the records that they withheld."""
        released: list[Record] = []
        for part in parts:
            if part.stopped:
                self._start(part, steady)
                released += part.withheld
                part.withheld.clear()
        return released

    def _start(self, part: Assigned, steady: int) -> None:
        part.stopped = ""
        if part.parked is not None and part.parked.because == "stopped":
            part.parked = part.parked._replace(at=steady)
        self.reconsider(part, steady)

    def reconsider(self, part: Assigned, steady: int) -> None:
        """Let it go on if it may. The new turn tells what comes now from what was fetched before."""
        if part.parked is not None and part.may_fetch(steady):
            offset, part.parked, part.most = part.parked.offset, None, NEVER
            part.turn += 1
            self._fetch.resume(part.source, part.epoch, offset, part.turn)

    def ring(self, parts: Iterable[Assigned], steady: int) -> None:
        """Let every partition go on whose time has come."""
        if steady < self.alarm:
            return
        self.alarm = NEVER
        for part in parts:
            self.reconsider(part, steady)
            if part.parked is not None and part.parked.at > steady:
                self.alarm = min(self.alarm, part.parked.at)
