"""How many deliveries may be out at once: the number itself, how it is cut, and how it grows again.

When it is moved, and what an outage is, is decided in `pace.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from sidecar.core.record import NEVER, Now

CUT_EVERY = 1_000
"""ms after which a throttle answer counts anew, where deliveries are too few to make a round."""
LONGEST_PAUSE = 5_000
"""ms without any delivery when one at a time is still too many: a single record's Retry-After must not stop a group."""
START_HANGS = 1_000
"""ms after which a slow start without an answer lets one more request out. Without it the first record of a start
could hold up all others for the whole of `deliver.timeout`."""
ASKED = "the service asked for {} ms"


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


AWAY = frozenset({State.OUTAGE, State.PROBING})


class Change(NamedTuple):
    """One change of state. `lasted`: ms since the outage or the throttle began, or since it was open again."""

    was: State
    state: State
    reason: str
    lasted: int


class InFlightLimit:
    """The number of deliveries that may be out. `start`: records in the first request of a slow start (None: none)."""

    def __init__(self, full: int, start: int | None, since: Now, changed: Callable[[Change], None]) -> None:
        self.full = full
        self.limit = min(start or full, full)
        self.state = State.OPEN
        self.reason = ""
        self.since = since
        """When the outage or the throttle began, or when it was open again."""
        self.changes: Counter[State] = Counter()
        """How often each state was entered."""
        self.changed = changed
        """Whom to tell of each change of state."""
        self.probe_at = NEVER
        """The steady time at which more may be let out."""
        self.slowed = False
        """It is not open because of answered failures: an outage, or the slow start after it."""
        self._request = start or 1
        self._cut_at = -CUT_EVERY
        self._round = self._heard = self._credit = 0

    def resize(self, full: int) -> None:
        """Have another full number from now on; what is out stays out, and an outage ends as it would have."""
        if self.state is State.OPEN and self.limit == self.full:
            self.limit = full
        elif self.state not in AWAY:
            self.limit = min(self.limit, full)
        self.full = full

    def look(self, now: Now) -> None:
        """Something is out in a slow start: `tick` shall look whether it hangs."""
        if self.state is State.OPEN and self.probe_at == NEVER and self.limit > 0:
            self.probe_at = now.steady + START_HANGS

    def cut(self, now: Now, after: int) -> None:
        """Halve the pace once a round: all that was out together is told so together. At one, pause."""
        if self.limit > 0 and (self._heard >= self._round or now.steady - self._cut_at >= CUT_EVERY):
            self._cut_at, self._heard, self._round, self._credit = now.steady, 0, self.limit, 0
            if self.limit > 1 or self.state is State.OPEN:
                self.limit, self.probe_at = max(1, self.limit // 2), NEVER
            else:
                self.limit, self.probe_at = 0, now.steady + min(after, LONGEST_PAUSE)
        self.to(State.THROTTLED, now, ASKED.format(after))

    def grow(self, now: Now) -> None:
        """Take in one answer: in a slow start the number doubles with each round, after a throttle it creeps by one."""
        limit = self.limit
        if limit < self.full:
            self._credit += limit if self.state is State.OPEN else 1
        while self._credit >= limit and limit < self.full:
            self._credit -= limit
            limit += 1
        self.let_out(limit, now)

    def let_out(self, limit: int, now: Now) -> None:
        """Let so many be out, up to the full number: then it is open."""
        self.limit = min(limit, self.full)
        if limit >= self.full:
            self.slowed = False
            self.to(State.OPEN, now)

    def to(self, state: State, now: Now, reason: str = "") -> None:
        """Change the state, and tell of it."""
        if state is self.state:
            return
        was, self.state = self.state, state
        self.changes[state] += 1
        lasted = now.steady - self.since.steady
        if not {was, state} <= AWAY:  # each probe is part of its outage
            self.since, self.reason = now, reason
        self.changed(Change(was, state, self.reason, lasted))
