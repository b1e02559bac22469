"""How many deliveries may be out: all of them, fewer when the service asks for time, one probe when it is away.

open → throttled → open, and open → outage → probing → slow start → open (ARCHITECTURE §7). Outages and throttling spend
no retry; they only change how much is released. What is an outage: one refused connection, a health URL that fails, or
many failures in a row of several records without one success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from sidecar.core.hold import NEVER
from sidecar.core.outcome import COMMITTED, Cancelled, Committed, Failed, NotSent, Outcome, Throttled
from sidecar.core.record import Now, Record
from sidecar.core.row import Row

FIRST_PROBE = 100
"""ms from the first refused connection to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE = 5_000
"""ms between probes at most: this late, at worst, the end of an outage is noticed."""
PROBE_HANGS = 5_000
"""ms after which another probe goes beside one without an answer: a healthy service may take minutes for a record."""
CUT_EVERY = 1_000
"""ms after which a throttle answer counts anew, where deliveries are too few to make a round."""
LONGEST_PAUSE = 5_000
"""ms without any delivery when one at a time is still too many: a single record's Retry-After must not stop a group."""
PATIENCE = 10
"""Probes of one record that spend nothing. Then its failure counts: where it is the only record there is, and poison,
the outage would never end."""
ANSWERED = "retry"
"""The label of a failure that the service answered. Without an answer it may have died of the record (contract §5)."""

ASKED = "the service asked for {} ms"


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


START = Now(0, 0)
AWAY = frozenset({State.OUTAGE, State.PROBING})


class Change(NamedTuple):
    """One change of state. `lasted`: ms since the outage or the throttle began, or since it was open again."""

    was: State
    state: State
    reason: str
    lasted: int


class Pace:
    """The number of deliveries that may be out at once, moved by what comes of them.

    `failures`: so many in a row are an outage (None: never). `guarded`: a health URL says when a probe may go, before
    the first delivery too. `since`: the time at the start.
    """

    def __init__(
        self,
        full: int,
        *,
        failures: int | None = None,
        guarded: bool = False,
        changed: Callable[[Change], None] = lambda change: None,
        since: Now = START,
    ) -> None:
        self.full = full
        self.limit = 0 if guarded else full
        self.state = State.OUTAGE if guarded else State.OPEN
        self.reason = "not known to be healthy yet" if guarded else ""
        self.since = since
        """When the outage or the throttle began, or when it was open again."""
        self.changes: Counter[State] = Counter()
        """How often each state was entered."""
        self.probe_at = NEVER
        """The steady time at which `tick` may let more out."""
        self._guarded, self.changed = guarded, changed
        """Whom to tell of each change of state."""
        self._row = Row(failures)
        self._probes: list[Record] = []
        self._spared: Counter[str] = Counter()
        self._backoff, self._not_before, self._cut_at = FIRST_PROBE, -NEVER, -CUT_EVERY
        self._round = self._heard = self._credit = 0
        self._unreachable = False

    def resize(self, full: int) -> None:
        """Have another full number from now on; what is out stays out, and an outage ends as it would have."""
        if self.state is State.OPEN and self.limit == self.full:
            self.limit = full
        elif self.state not in AWAY:
            self.limit = min(self.limit, full)
        self.full = full

    # --- what the gate and the lanes tell ----------------------------------------------------------------------------

    def note(self, record: Record, outcome: Outcome, now: Now) -> Outcome:
        """Take in what came of one delivery; what it is worth: in an outage a failure is no attempt."""
        if outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full and not self._row.length:
            return outcome
        if self.state in AWAY:
            return self._note_away(record, outcome, now)
        match outcome:
            case NotSent(reason=reason):
                if self.limit > 0:  # in a pause batches that were gathered come back so
                    self._out(now, reason, unreachable=True)
            case Throttled(after=after):
                self._cut(now, after)
            case Failed(asked=False):
                if self._row.add(record, now):
                    self._out(now, f"{self._row.length} failures in a row, the last {outcome.reason}")
            case Cancelled():
                pass
            case _:
                self._answered(now, isinstance(outcome, Committed))
        self._heard += 1
        return outcome

    def sent(self, record: Record, now: Now) -> None:
        """A record has gone out while probing."""
        self._probes.append(record)
        self.probe_at = now.steady + PROBE_HANGS

    def tick(self, now: Now, in_flight: int) -> None:
        """Let one delivery out when its time has come, beside `in_flight` that may hang as long as they may take."""
        if now.steady < self.probe_at:
            return
        self.probe_at = NEVER
        if self.state in AWAY:
            self.limit = in_flight + 1
            self._to(State.PROBING, now)
        else:
            self.limit = 1

    def spares(self, record: Record, failure: Failed) -> bool:
        """Whether the failure would be no attempt now: of a probe, or answered when the outage was known already."""
        if self.state not in AWAY or failure.asked:
            return False
        return self._spared[record.id] < PATIENCE if self._is_probe(record) else failure.label == ANSWERED

    # --- what the health URL and the view tell -----------------------------------------------------------------------

    def healthy(self, now: Now) -> None:
        """The health URL says that the service is there: a probe may go, not sooner than probes may."""
        if self.state is State.OUTAGE:
            self.probe_at = max(now.steady, self._not_before)

    def unhealthy(self, reason: str) -> None:
        """The health URL fails: no probe goes."""
        if self.state is State.OUTAGE:
            self.probe_at, self.reason = NEVER, reason

    def storm(self, now: Now) -> None:
        """The group-wide view sees a storm of failures: an outage, whatever this instance has seen itself."""
        if self.state not in AWAY:
            self._out(now, "a storm of failures in the group")

    # --- outage ------------------------------------------------------------------------------------------------------

    def _note_away(self, record: Record, outcome: Outcome, now: Now) -> Outcome:
        """Only a probe can tell that the service is there: what was sent before may end well while it shuts down."""
        spared = isinstance(outcome, Failed) and self.spares(record, outcome)
        if not self._is_probe(record):
            self.limit -= self.state is State.PROBING  # its place is for nobody
        else:
            self._probes = [probe for probe in self._probes if probe is not record]
            match outcome:
                case NotSent() | Cancelled():
                    self._still_out(now)
                case Failed(asked=False) if not (self._unreachable and outcome.label == ANSWERED):
                    self._spared[record.id] += 1 if spared else -PATIENCE
                    self._still_out(now)
                case _ if self.state is State.PROBING or not self._guarded:
                    self._back(outcome, now)
        return NotSent(outcome.reason, probe=True) if spared and isinstance(outcome, Failed) else outcome

    def _is_probe(self, record: Record) -> bool:
        return any(record is probe for probe in self._probes)

    def _out(self, now: Now, reason: str, *, unreachable: bool = False) -> None:
        """`unreachable`: then any answer to a probe, a bad one too, says that the service is back."""
        self._backoff, self._unreachable = FIRST_PROBE, unreachable
        self._row.clear()
        self._shut(now)
        self._to(State.OUTAGE, now, reason)

    def _still_out(self, now: Now) -> None:
        if self.state is State.PROBING:
            self._backoff = min(self._backoff * 2, LAST_PROBE)
            self._shut(now)
            self._to(State.OUTAGE, now)

    def _shut(self, now: Now) -> None:
        self.limit, self._not_before = 0, now.steady + self._backoff
        self.probe_at = NEVER if self._guarded else self._not_before

    def _back(self, outcome: Outcome, now: Now) -> None:
        """Begin with one place beside what still hangs."""
        self.limit, self.probe_at, self._credit = max(1, min(self.limit, self.full)), NEVER, 0
        self._probes.clear()
        self._spared.clear()
        if isinstance(outcome, Throttled):
            self._to(State.THROTTLED, now, ASKED.format(outcome.after))
        else:
            self._to(State.OPEN, now)
            self._answered(now, took=True)

    # --- throttle ----------------------------------------------------------------------------------------------------

    def _cut(self, now: Now, after: int) -> None:
        """Halve the pace once a round: all that was out together is told so together. At one, pause."""
        if self.limit > 0 and (self._heard >= self._round or now.steady - self._cut_at >= CUT_EVERY):
            self._cut_at, self._heard, self._round, self._credit = now.steady, 0, self.limit, 0
            if self.limit > 1 or self.state is State.OPEN:
                self.limit = max(1, self.limit // 2)
            else:
                self.limit, self.probe_at = 0, now.steady + min(after, LONGEST_PAUSE)
        self._to(State.THROTTLED, now, ASKED.format(after))

    def _answered(self, now: Now, took: bool) -> None:
        """The service is there. After an outage the pace doubles (slow start), after a throttle it creeps."""
        self._row.clear()
        if self.limit == 0 or (self.state is State.THROTTLED and not took):
            return
        if self.limit < self.full:
            self._credit += self.limit if self.state is State.OPEN else 1
        while self._credit >= self.limit and self.limit < self.full:
            self._credit -= self.limit
            self.limit += 1
        if self.limit >= self.full:
            self._to(State.OPEN, now)

    def _to(self, state: State, now: Now, reason: str = "") -> None:
        if state is self.state:
            return
        was, self.state = self.state, state
        self.changes[state] += 1
        lasted = now.steady - self.since.steady
        if not {was, state} <= AWAY:  # each probe is part of its outage
            self.since, self.reason = now, reason
        self.changed(Change(was, state, self.reason, lasted))
