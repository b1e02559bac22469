"""The number of deliveries that may be in flight at once: the number itself, how it is cut, and how it grows again.

When it changes, and what an outage is, is decided in `pace.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from sidecar.core.pace.throttle_share import ALL, ThrottleShare
from sidecar.core.record import NEVER, Now

LONGEST_PAUSE = 5_000
"""ms without any delivery, at most, if one at a time is still too many. The Retry-After of a single record must not
stop a whole group."""
START_HANGS = 1_000
"""ms after which a slow start without an answer lets one more request out. Without it the first record of a start could
delay all others for the whole of `deliver.timeout`."""
THROTTLE_HANGS = 5_000
"""ms without any answer after which a throttled pace lets one more request out. Without it a single record that the
service works on for long would delay all others."""
GROWTH = 32
"""One part in this many of the number is what it grows by in a round after a throttle. By one alone, a thousand places
would take a thousand rounds."""
ASKED = "the service asked for {} ms"


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


AWAY = frozenset({State.OUTAGE, State.PROBING})


class Change(NamedTuple):
    """One change of state. `lasted`: ms since the outage or the throttle began, or since the pace was open again."""

    was: State
    state: State
    reason: str
    lasted: int


class InFlightLimit:
    """The number of deliveries that may be in flight.

    `start`: records in the first request of a slow start (None: no slow start).
    """

    def __init__(self, full: int, start: int | None, since: Now, changed: Callable[[Change], None]) -> None:
        self.full = full
        self.limit = min(start or full, full)
        self.state = State.OPEN
        self.reason = ""
        self.since = since
        """When the outage or the throttle began, or when the pace was open again."""
        self.changes: Counter[State] = Counter()
        """How often each state was entered."""
        self.changed = changed
        """The callback for each change of state."""
        self.probe_at = NEVER
        """The steady time at which more may be let out."""
        self.slowed = False
        """Whether answered failures keep deliveries back: in an outage, and in the slow start after it (`SLOW_FOR`)."""
        self._request = start or 1
        self.share = ThrottleShare()
        self._heard = self._heard_before = self._credit = 0

    def resize(self, full: int) -> None:
        """Change the maximum in flight. Deliveries in flight, and an outage under way, are not affected."""
        if self.state is State.OPEN and self.limit == self.full:
            self.limit = full
        elif self.state not in AWAY:
            self.limit = min(self.limit, full)
        self.full = full

    def look(self, now: Now) -> None:
        """Have `tick` check whether what is in flight in a slow start or after a throttle hangs."""
        if self.state not in AWAY and self.probe_at == NEVER and self.limit > 0:
            self.probe_at = now.steady + (START_HANGS if self.state is State.OPEN else THROTTLE_HANGS)
            self._heard_before = self._heard

    def cut(self, now: Now, after: int) -> None:
        """Slow down by the share of answers that ask for time, once a round (`ThrottleShare`).

        At one delivery at a time, pause if all answers ask.
        """
        part = self.share.throttled(self.limit, now.steady) if self.limit > 0 else 0.0
        if not part:
            return
        self._credit = 0
        if self.limit > 1 or self.state is State.OPEN:
            self.limit, self.probe_at = max(1, int(self.limit * (1 - part))), NEVER
        elif part == ALL:
            self.limit, self.probe_at = 0, now.steady + min(after, LONGEST_PAUSE)
        self.to(State.THROTTLED, now, ASKED.format(after))

    def grow(self, now: Now) -> None:
        """Note one answer.

        In a slow start the number doubles with each round; after a throttle it grows by one a round, or by a part of
        it.
        """
        limit = self.limit
        if limit < self.full:
            self._credit += limit if self.state is State.OPEN else max(1, limit // GROWTH)
        while self._credit >= limit and limit < self.full:
            self._credit -= limit
            limit += 1
        self.let_out(limit, now)

    def let_out(self, limit: int, now: Now) -> None:
        """Let `limit` deliveries be in flight, up to the full number; at that number the pace is open."""
        self.limit = min(limit, self.full)
        if limit >= self.full:
            self.slowed = False
            self.to(State.OPEN, now)

    def to(self, state: State, now: Now, reason: str = "") -> None:
        """Change the state, and report the change."""
        if state is self.state:
            return
        was, self.state = self.state, state
        self.slowed = self.slowed and state is not State.THROTTLED  # then the service asks for time, and fails no more
        self.changes[state] += 1
        lasted = now.steady - self.since.steady
        if not {was, state} <= AWAY:  # each probe is part of its outage
            self.since, self.reason = now, reason
        self.changed(Change(was, state, self.reason, lasted))
