"""Shares the places in flight between the lanes, in turn, so that neither fresh records nor retries starve."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from sidecar.core.outcome import Outcome
from sidecar.core.pace import Pace, State
from sidecar.core.record import Now, Record


class Sender(Protocol):
    """A lane as the gate sees it: records that may go, and the way to send one."""

    ready: deque[Record]

    def send(self, record: Record, now: Now) -> bool:
        """Deliver it; False when it may not go after all."""


class Gate:
    """At most `pace.limit` deliveries are out, over all lanes together."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.in_flight = 0
        self.closed = False
        """Nothing is sent any more: the sidecar drains."""
        self._lanes: deque[Sender] = deque()

    def join(self, lane: Sender) -> None:
        """Give a lane its turn."""
        self._lanes.append(lane)

    def returned(self, record: Record, outcome: Outcome, now: Now) -> Outcome:
        """A delivery has ended; what its outcome is worth."""
        self.in_flight -= 1
        return self.pace.note(record, outcome, now)

    def pump(self, now: Now) -> None:
        """Send what may go: one record of each lane in turn, until all places are taken or all lanes are empty."""
        lanes, pace, empty = self._lanes, self.pace, 0
        while self.in_flight < pace.limit and empty < len(lanes) and not self.closed:
            lane = lanes[0]
            lanes.rotate(-1)
            if not lane.ready:
                empty += 1
                continue
            record = lane.ready.popleft()
            if lane.send(record, now):
                self.in_flight += 1
                empty = 0
                if pace.state is State.PROBING:
                    pace.sent(record)
