"""How many deliveries may be out: all of them, fewer when the service asks for time, one probe when it is away.

open → throttled → open, and open → outage → probing → slow start → open (ARCHITECTURE §7). Outages and throttling spend
no retry; they only change how much is released.
"""

from __future__ import annotations

from enum import StrEnum

from sidecar.core.hold import NEVER
from sidecar.core.outcome import COMMITTED, Cancelled, Committed, NotSent, Outcome, Throttled
from sidecar.core.record import Now

FIRST_PROBE = 100
"""ms from the first refused connection to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE = 5_000
"""ms between probes at most: this late, at worst, the end of an outage is noticed."""
CUT_EVERY = 1_000
"""ms within which all throttle answers count as one: a burst of 429 must halve the pace once, not eight times."""


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


class Pace:
    """The number of deliveries that may be out at once, moved by what comes of them."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.limit = full
        self.state = State.OPEN
        self.probe_at = NEVER
        self._backoff = FIRST_PROBE
        self._cut_at = -CUT_EVERY
        self._credit = 0

    def note(self, outcome: Outcome, now: Now) -> None:
        """Take in what came of one delivery."""
        if outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full:
            return
        match outcome:
            case NotSent():
                self._out(now)
            case Throttled():
                self._cut(now)
            case Cancelled():
                pass
            case _:
                self._answered(isinstance(outcome, Committed))

    def tick(self, now: Now, in_flight: int) -> None:
        """Let one probe out when its time has come, beside `in_flight` that may hang for as long as they may take."""
        if self.state is State.OUTAGE and now.steady >= self.probe_at:
            self.state, self.limit, self.probe_at = State.PROBING, in_flight + 1, NEVER

    def _out(self, now: Now) -> None:
        if self.state is State.OUTAGE:
            return  # the others that were out when it began
        self._backoff = min(self._backoff * 2, LAST_PROBE) if self.state is State.PROBING else FIRST_PROBE
        self.state, self.limit, self.probe_at = State.OUTAGE, 0, now.steady + self._backoff

    def _cut(self, now: Now) -> None:
        if self.state in (State.OUTAGE, State.PROBING):
            self._back()
        if now.steady - self._cut_at >= CUT_EVERY:
            self._cut_at = now.steady
            self.limit = max(1, self.limit // 2)
        self.state = State.THROTTLED

    def _answered(self, took: bool) -> None:
        """The service is there. After an outage the pace doubles (slow start), after a throttle it creeps."""
        if self.state in (State.OUTAGE, State.PROBING):
            self._back()
        if not took:
            return
        if self.limit < self.full:
            self._credit += self.limit if self.state is State.OPEN else 1
        while self._credit >= self.limit and self.limit < self.full:
            self._credit -= self.limit
            self.limit += 1
        if self.limit >= self.full:
            self.state = State.OPEN

    def _back(self) -> None:
        self.state, self.limit, self.probe_at, self._credit = State.OPEN, 1, NEVER, 0
