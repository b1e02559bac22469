"""The timer of a lane: it starts the commit that is due, and asks to be woken for the next deadline."""

from __future__ import annotations

from sidecar.core.lane.parts import LaneParts
from sidecar.core.lane.quarantine import Quarantine
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.ports import Ports
from sidecar.core.record import NEVER, Now


class LaneTimer:
    """One timer for all deadlines of a lane."""

    def __init__(self, parts: LaneParts, quarantine: Quarantine, ports: Ports, dispatcher: Dispatcher) -> None:
        self._parts, self._quarantine, self._ports, self._dispatcher = parts, quarantine, ports, dispatcher
        self._woken_at = NEVER

    def fired(self) -> None:
        """Note that the lane is ticked, so no wake-up is pending any more."""
        self._woken_at = NEVER

    def schedule(self, now: Now) -> None:
        """Start the commit that is due, and ask to be woken for the next deadline."""
        commits, parts = self._parts.commits, self._parts
        if commits.next_at() <= now.steady and (batch := commits.take(now)) is not None:
            self._ports.commit(batch)
        alarms = min(parts.delayed.next_at(), parts.paused.alarm, self._quarantine.alarm, self._dispatcher.alarm(now))
        self.wake_by(min(commits.next_at(), alarms))

    def wake_by(self, at: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at < self._woken_at:
            self._woken_at = at
            self._ports.wake(at)
