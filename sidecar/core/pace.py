"""How many deliveries may be out: all of them, fewer when the service asks for time, one probe when it is away.

open → throttled → open, and open → outage → probing → slow start → open (ARCHITECTURE §7). Outages and throttling spend
no retry; they only change how much is released. What is an outage: one refused connection, a health URL that fails, or
many failures in a row of several records without one success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from sidecar.core.hold import NEVER
from sidecar.core.outcome import COMMITTED, Cancelled, Committed, Failed, NotSent, Outcome, Throttled
from sidecar.core.record import Now, Record

FIRST_PROBE = 100
"""ms from the first refused connection to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE = 5_000
"""ms between probes at most: this late, at worst, the end of an outage is noticed."""
CUT_EVERY = 1_000
"""ms within which all throttle answers count as one: a burst of 429 must halve the pace once, not eight times."""
FAILING_RECORDS = 3
"""Different records that must fail in a row before it is an outage: one poison record is none."""
PATIENCE = 10
"""Probes of one record that spend nothing. Then its failure counts: where it is the only record there is, and poison,
the outage would never end."""


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


class Pace:
    """The number of deliveries that may be out at once, moved by what comes of them.

    `failures`: so many in a row are an outage (None: never). `guarded`: a health URL says when a probe may go, the
    first time before anything is delivered. `changed` gets each new state.
    """

    def __init__(
        self,
        full: int,
        *,
        failures: int | None = None,
        guarded: bool = False,
        changed: Callable[[State, Now], None] = lambda state, now: None,
    ) -> None:
        self.full = full
        self.limit = 0 if guarded else full
        self.state = State.OUTAGE if guarded else State.OPEN
        self.probe_at = NEVER
        self._failures = failures
        self._guarded = guarded
        self._changed = changed
        self._row = 0
        self._failing: set[str] = set()
        self._probe: Record | None = None
        self._spared: Counter[str] = Counter()
        self._backoff = FIRST_PROBE
        self._cut_at = -CUT_EVERY
        self._credit = 0

    def note(self, record: Record, outcome: Outcome, now: Now) -> Outcome:
        """Take in what came of one delivery; what it is worth: the failure of a probe is no attempt."""
        if outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full and not self._row:
            return outcome
        match outcome:
            case NotSent():
                self._out(now)
            case Throttled():
                self._cut(now)
            case Failed(asked=False):
                return self._failed(record, outcome, now)
            case Cancelled():
                if record is self._probe:  # it never got there: another one must find out
                    self._out(now)
            case _:
                self._answered(now, isinstance(outcome, Committed))
        return outcome

    def sent(self, record: Record) -> None:
        """A record has gone out while probing: the first one is the probe."""
        self._probe = self._probe or record

    def tick(self, now: Now, in_flight: int) -> None:
        """Let one probe out when its time has come, beside `in_flight` that may hang for as long as they may take."""
        if self.state is State.OUTAGE and now.steady >= self.probe_at:
            self.limit, self.probe_at, self._probe = in_flight + 1, NEVER, None
            self._to(State.PROBING, now)

    def healthy(self, now: Now) -> None:
        """The health URL says that the service is there: a probe may go."""
        if self.state is State.OUTAGE:
            self.probe_at = now.steady

    def spares(self, record: Record) -> bool:
        """Whether a failure of the record would be no attempt now: it is the probe, and has not been it too often."""
        return self._is_probe(record) and self._spared[record.id] < PATIENCE

    def _is_probe(self, record: Record) -> bool:
        return self.state is State.PROBING and record is self._probe

    def _failed(self, record: Record, failure: Failed, now: Now) -> Outcome:
        if self._is_probe(record):
            spared = self.spares(record)
            self._spared[record.id] += 1 if spared else -PATIENCE
            self._out(now)
            return NotSent(failure.reason, probe=True) if spared else failure
        if self._failures is None or self.state in (State.OUTAGE, State.PROBING):
            return failure
        self._row += 1
        if len(self._failing) < FAILING_RECORDS:
            self._failing.add(record.id)
        if self._row >= self._failures and len(self._failing) >= FAILING_RECORDS:
            self._out(now)
        return failure

    def _out(self, now: Now) -> None:
        if self.state is State.OUTAGE:
            return  # the others that were out when it began
        self._backoff = min(self._backoff * 2, LAST_PROBE) if self.state is State.PROBING else FIRST_PROBE
        self.limit, self.probe_at = 0, NEVER if self._guarded else now.steady + self._backoff
        self._forget_row()
        self._to(State.OUTAGE, now)

    def _cut(self, now: Now) -> None:
        if self.state in (State.OUTAGE, State.PROBING):
            self._back()
        if now.steady - self._cut_at >= CUT_EVERY:
            self._cut_at = now.steady
            self.limit = max(1, self.limit // 2)
        self._to(State.THROTTLED, now)

    def _answered(self, now: Now, took: bool) -> None:
        """The service is there. After an outage the pace doubles (slow start), after a throttle it creeps."""
        self._forget_row()
        if self.state in (State.OUTAGE, State.PROBING):
            self._back()
            self._to(State.OPEN, now)
        if not took:
            return
        if self.limit < self.full:
            self._credit += self.limit if self.state is State.OPEN else 1
        while self._credit >= self.limit and self.limit < self.full:
            self._credit -= self.limit
            self.limit += 1
        if self.limit >= self.full:
            self._to(State.OPEN, now)

    def _back(self) -> None:
        self.limit, self.probe_at, self._credit, self._probe = 1, NEVER, 0, None
        self._spared.clear()

    def _forget_row(self) -> None:
        self._row = 0
        self._failing.clear()

    def _to(self, state: State, now: Now) -> None:
        if state is not self.state:
            self.state = state
            self._changed(state, now)
