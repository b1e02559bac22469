"""When a lane acts next: it commits when it is time, and asks to be woken for whatever comes after that."""

from __future__ import annotations

from typing import Protocol

from sidecar.core.lane.delay_queue import Hold
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.ownership import Tenure
from sidecar.core.lane.paused import ParkingLot
from sidecar.core.lane.quarantine import Suspects
from sidecar.core.pace.dispatcher import Gate
from sidecar.core.ports import Ports
from sidecar.core.record import NEVER, Now


class Organs(Protocol):
    """What of a lane has a time of its own."""

    outbox: Outbox
    hold: Hold
    lot: ParkingLot
    tenure: Tenure
    suspects: Suspects


class Schedule:
    """One timer for all that a lane waits for, and the commit when its time has come."""

    def __init__(self, organs: Organs, ports: Ports, gate: Gate) -> None:
        self.moved = False
        """Whether some progress is not committed yet."""
        self._organs, self._ports, self._gate = organs, ports, gate
        self._woken_at = NEVER

    def rang(self) -> None:
        """The lane is ticked: nothing is asked for any more."""
        self._woken_at = NEVER

    def progressed(self) -> None:
        """Some progress moved: it is committed within the second."""
        if not self.moved:
            self.moved = True
            self.want(self._organs.outbox.next_at(True))

    def arm(self, now: Now) -> None:
        """Commit if it is time, and ask to be woken for whatever comes next."""
        organs = self._organs
        self.moved, organs.tenure.moved = self.moved or organs.tenure.moved, False
        at = organs.outbox.next_at(self.moved or organs.tenure.closing)
        if at <= now.steady or organs.tenure.hurries(organs.outbox):
            self._submit(now)
            at = organs.outbox.next_at(self.moved)
        alarms = min(organs.hold.next_at(), organs.lot.alarm, organs.suspects.alarm, self._gate.alarm(now))
        self.want(min(at, alarms))

    def want(self, at: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at < self._woken_at:
            self._woken_at = at
            self._ports.wake(at)

    def _submit(self, now: Now) -> None:
        parts = self._organs.tenure.parts
        batch = self._organs.outbox.take(parts, now)
        self.moved = any(part.dirty for part in parts.values())
        if batch is not None:
            self._ports.commit(batch)
