"""The timer of a lane: it commits when a commit is due, and asks to be woken for the next deadline."""

from __future__ import annotations

from typing import Protocol

from sidecar.core.lane.delay_queue import DelayQueue
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.paused import PausedPartitions
from sidecar.core.lane.quarantine import Quarantine
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.ports import Ports
from sidecar.core.record import NEVER, Now


class Organs(Protocol):
    """The parts of a lane that have a deadline."""

    outbox: Outbox
    delayed: DelayQueue
    paused: PausedPartitions
    ownership: Ownership
    quarantine: Quarantine


class LaneTimer:
    """One timer for all deadlines of a lane, and the start of each commit that is due."""

    def __init__(self, organs: Organs, ports: Ports, gate: Dispatcher) -> None:
        self.uncommitted = False
        """Whether some progress is not committed yet."""
        self._organs, self._ports, self._gate = organs, ports, gate
        self._woken_at = NEVER

    def fired(self) -> None:
        """Note that the lane is ticked, so no wake-up is pending any more."""
        self._woken_at = NEVER

    def progressed(self) -> None:
        """Note that some progress moved: it is committed within the second."""
        if not self.uncommitted:
            self.uncommitted = True
            self.wake_by(self._organs.outbox.next_at(True))

    def schedule(self, now: Now) -> None:
        """Commit if a commit is due, and ask to be woken for the next deadline."""
        organs = self._organs
        self.uncommitted, organs.ownership.uncommitted = self.uncommitted or organs.ownership.uncommitted, False
        at = organs.outbox.next_at(self.uncommitted or organs.ownership.closing)
        if at <= now.steady or organs.ownership.commit_is_urgent(organs.outbox):
            self._submit(now)
            at = organs.outbox.next_at(self.uncommitted)
        alarms = min(organs.delayed.next_at(), organs.paused.alarm, organs.quarantine.alarm, self._gate.alarm(now))
        self.wake_by(min(at, alarms))

    def wake_by(self, at: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at < self._woken_at:
            self._woken_at = at
            self._ports.wake(at)

    def _submit(self, now: Now) -> None:
        parts = self._organs.ownership.parts
        batch = self._organs.outbox.take(parts, now)
        self.uncommitted = any(part.dirty for part in parts.values())
        if batch is not None:
            self._ports.commit(batch)
