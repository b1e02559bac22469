"""The timer of a lane: it starts the commit that is due, and asks to be woken for the next deadline."""

from __future__ import annotations

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.long_waits import LongWaits
from reconsume.sidecar.core.lane.membership_doubt import MembershipDoubt
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.room_shares import RoomShares
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.ports import Ports
from reconsume.sidecar.core.record import NEVER, Now


class LaneTimer:
    """One timer for all deadlines of a lane.

    Invariant: while a wake-up is pending, it comes at `_woken_at_ms`, which is not later than any deadline.
    """

    def __init__(
        self,
        commits: Commits,
        waiting: WaitingRecords,
        paused: PausedPartitions,
        room: RoomShares,
        gate: CrashGate | None,
        dispatcher: Dispatcher,
        ports: Ports,
        doubt: MembershipDoubt,
        long_waits: LongWaits | None = None,
    ) -> None:
        self._commits, self._waiting, self._paused, self._gate = commits, waiting, paused, gate
        self._room, self._doubt, self._long = room, doubt, long_waits
        self._dispatcher, self._ports = dispatcher, ports
        self._woken_at_ms = NEVER

    def fired(self) -> None:
        """Note that the lane is ticked, so no wake-up is pending any more."""
        self._woken_at_ms = NEVER

    def schedule(self, now: Now) -> None:
        """Start the commit that is due, and ask to be woken for the next deadline."""
        commits = self._commits
        if commits.next_at() <= now.steady_ms and (batch := commits.take(now)) is not None:
            self._ports.commit(batch)
        self.wake_by(min(self._dispatcher.look_for_hangs(now), self._next_at()))

    def _next_at(self) -> int:
        """Return the steady time (ms) of the lane's own next deadline, without those of the dispatcher."""
        at_ms = min(self._commits.next_at(), self._waiting.next_at(), self._paused.alarm_ms, self._room.alarm_ms)
        at_ms = min(at_ms, self._doubt.alarm_ms)
        if self._gate is not None:
            at_ms = min(at_ms, self._gate.alarm_ms)
        return at_ms if self._long is None else min(at_ms, self._long.next_at())

    def wake_by(self, at_ms: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at_ms < self._woken_at_ms:
            self._woken_at_ms = at_ms
            self._ports.wake(at_ms)

    def wakes_by(self, at_ms: int) -> bool:
        """Return whether a wake-up is pending that comes at a steady time (ms) at the latest."""
        return self._woken_at_ms <= at_ms

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self._woken_at_ms <= self._next_at(), f"the lane is woken for each deadline: {self._next_at()}")
