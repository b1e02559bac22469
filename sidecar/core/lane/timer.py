"""The timer of a lane: it commits when a commit is due, and asks to be woken for the next deadline."""

from __future__ import annotations

from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.parts import LaneParts
from sidecar.core.lane.quarantine import Quarantine
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.ports import Ports
from sidecar.core.record import NEVER, Now


class LaneTimer:
    """One timer for all deadlines of a lane, and the start of each commit that is due."""

    def __init__(
        self, parts: LaneParts, ownership: Ownership, quarantine: Quarantine, ports: Ports, dispatcher: Dispatcher
    ) -> None:
        self.uncommitted = False
        """Whether some progress is not committed yet."""
        self._parts, self._ownership, self._quarantine = parts, ownership, quarantine
        self._ports, self._dispatcher = ports, dispatcher
        self._woken_at = NEVER

    def fired(self) -> None:
        """Note that the lane is ticked, so no wake-up is pending any more."""
        self._woken_at = NEVER

    def progressed(self) -> None:
        """Note that some progress moved: it is committed within the second."""
        if not self.uncommitted:
            self.uncommitted = True
            self.wake_by(self._parts.outbox.next_at(True))

    def schedule(self, now: Now) -> None:
        """Commit if a commit is due, and ask to be woken for the next deadline."""
        parts, ownership = self._parts, self._ownership
        self.uncommitted, ownership.uncommitted = self.uncommitted or ownership.uncommitted, False
        at = parts.outbox.next_at(self.uncommitted or ownership.closing)
        if at <= now.steady or ownership.commit_is_urgent(parts.outbox):
            self._submit(now)
            at = parts.outbox.next_at(self.uncommitted)
        alarms = min(parts.delayed.next_at(), parts.paused.alarm, self._quarantine.alarm, self._dispatcher.alarm(now))
        self.wake_by(min(at, alarms))

    def wake_by(self, at: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at < self._woken_at:
            self._woken_at = at
            self._ports.wake(at)

    def _submit(self, now: Now) -> None:
        partitions = self._parts.partitions
        batch = self._parts.outbox.take(partitions, now)
        self.uncommitted = any(part.dirty for part in partitions.values())
        if batch is not None:
            self._ports.commit(batch)
