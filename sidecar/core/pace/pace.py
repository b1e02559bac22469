"""How many deliveries may be in flight: all of them, fewer when the service asks for time, one at a time in an outage.

    state     | event                                                | next state
    ----------|------------------------------------------------------|-----------
    open      | a connection is refused                              | outage
    open      | the row is full                                      | outage
    open      | the row is full, and the health URL is well          | open
    open      | the row is full, and the health URL fails            | outage
    open      | a storm in the group                                 | outage
    open      | the service asks for time                            | throttled
    open      | a few of many answers ask for time                   | open
    throttled | a connection is refused                              | outage
    throttled | the row is full                                      | outage
    throttled | a storm in the group                                 | outage
    throttled | successes up to the full number                      | open
    throttled | no answer for a while                                | throttled
    outage    | the pause is over, or the health URL is well         | probing
    outage    | a late answer to what is no probe                    | outage
    probing   | a late answer to what is no probe                    | probing
    probing   | the probe gets no answer for a while                 | probing
    probing   | the probe succeeds                                   | open
    probing   | the probe is answered by a failure                   | outage
    probing   | the same, and the service was unreachable            | open
    probing   | the same, and the health URL is well                 | open
    probing   | the probe is not sent, cancelled, or ends unanswered | outage
    probing   | the service asks for time                            | throttled

What the states mean:

    open:      deliveries up to the full number, or to the limit of a slow start
    throttled: fewer deliveries, because the service asked for time
    outage:    no delivery, because the service fails or cannot be reached
    probing:   one delivery at a time, to learn whether the service is back

"The row" in the table is the failure streak (`FailureStreak`): a number of failures in a row, of several records.

The pace changes how much is delivered, and never what an outcome counts for. An answered failure is an attempt, in an
outage too; a refused connection (NotSent) is none.

Each start, and each outage that ends in `open`, begins a slow start: the limit doubles with each round of answers.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.core.invariant import ensure
from sidecar.core.outcome import COMMITTED, Cancelled, Committed, Failed, NotSent, Outcome, Throttled
from sidecar.core.pace.failure_streak import FailureStreak
from sidecar.core.pace.in_flight_limit import ASKED, AWAY, Change, InFlightLimit, State
from sidecar.core.record import NEVER, Now, Record

__all__ = ["AWAY", "Change", "Pace", "State"]

FIRST_PROBE = 100
"""ms from the beginning of an outage to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE = 5_000
"""ms between probes of an unreachable service at most: this late, at worst, the end of an outage is noticed."""
PROBE_INTERVAL = 1_000
"""ms between probes at most while the service answers with failures (`deliver.outage_interval`): each is an attempt."""
PROBE_HANGS = 5_000
"""ms after which another probe goes beside one without an answer: a healthy service may take minutes for a record."""
SLOW_FOR = 10_000
"""ms of an open pace after which answered failures slow nothing down, even if the slow start has not reached the full
number. With few records it may take days, and until then each partition would have only a share of the memory."""
WELL_FOR = 1_000
"""ms for which an answer of the health URL holds: if all records fail, it is asked once a second, not at each
streak."""
ANSWERED = "retry"
"""The outcome label of a failure that the service answered. Without an answer the service may be gone."""

START = Now(0, 0)


class Pace(InFlightLimit):
    """The number of deliveries that may be in flight at once, changed by their outcomes.

    `failures`: this many in a row are an outage (None: never). `interval`: ms between probes of a service that answers,
    at most. `guarded`: a health URL decides when a probe may go, also before the first delivery. `start`: records in
    the first request of a slow start (None: the start is at full pace). `since`: the time at the start.

    Invariants: outside an outage at most `full` may be in flight, and in state outage nothing; while nothing may be in
    flight, a time or the health URL ends it; only an outage has probes.
    """

    def __init__(
        self,
        full: int,
        *,
        failures: int | None = None,
        interval: int = PROBE_INTERVAL,
        guarded: bool = False,
        start: int | None = None,
        changed: Callable[[Change], None] = lambda change: None,
        since: Now = START,
    ) -> None:
        super().__init__(full, start, since, changed)
        self.doubted = 0
        """The limit that the health URL may give back, while it is asked what a full failure streak means; else 0."""
        self.ask: Callable[[], None] = lambda: None
        """Asks the health URL at once; `healthy` or `unhealthy` is called with the answer."""
        self._guarded, self._interval = guarded, interval
        self._row = FailureStreak(failures)
        self._probes: list[Record] = []
        self._backoff, self._not_before, self._well_until = FIRST_PROBE, -NEVER, -NEVER
        if guarded:
            self.limit, self.state, self.reason = 0, State.OUTAGE, "not known to be healthy yet"

    # --- calls of the dispatcher and the lanes ------------------------------------------------------------------------

    def note(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Change the pace by the outcome of one delivery."""
        if outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full and not self._row.length:
            self.share.others += 1
            return
        if self.state in AWAY:
            self._note_away(record, outcome, now)
            return
        match outcome:
            case NotSent(reason=reason):
                if self.limit > 0:  # in a pause, batches that were collected before come back so
                    self._out(now, reason, answers=False)
            case Throttled(after=after):
                self.cut(now, after)
            case Failed(asked=False):
                if self._row.add(record, now):
                    self._row_is_full(now, f"{self._row.length} failures in a row, the last {outcome.reason}")
                elif self.limit < self.full and self.state is State.OPEN and outcome.label == ANSWERED:
                    self.grow(now)
            case Cancelled():
                pass
            case _:
                self._answered(now, isinstance(outcome, Committed))
        self._heard += 1
        self.share.others += not isinstance(outcome, Throttled)

    def sent(self, record: Record, now: Now) -> None:
        """Note that a record has gone out as a probe."""
        self._probes.append(record)
        self.probe_at = now.steady + PROBE_HANGS

    def tick(self, now: Now, in_flight: int) -> None:
        """Let more out when its time has come.

        `in_flight` deliveries may hang as long as they are allowed to, so more go beside them.
        """
        if self.slowed and self.state is State.OPEN and now.steady - self.since.steady >= SLOW_FOR:
            self.slowed = False
        if now.steady < self.probe_at:
            return
        self.probe_at = NEVER
        if self.state in AWAY:
            self.limit = in_flight + 1
            self.to(State.PROBING, now)
        elif self.limit == 0:
            self.limit = 1
        elif self.state is State.OPEN and in_flight >= self.limit:
            self.let_out(self.limit + self._request, now)
        elif in_flight >= self.limit and self._heard == self._heard_before:
            self.let_out(self.limit + 1, now)

    # --- calls of the health check and the view -----------------------------------------------------------------------

    @property
    def unsure(self) -> bool:
        """Whether an answer of the health URL would change anything."""
        return self.state is State.OUTAGE or self.doubted > 0

    def healthy(self, now: Now) -> None:
        """Note that the health URL is well: go on as before, or let a probe go, but no sooner than it may."""
        self._well_until = now.steady + WELL_FOR
        if self.state is State.OUTAGE:
            self.probe_at = max(now.steady, self._not_before)
        elif self.doubted:
            self.limit, self.doubted = min(self.doubted, self.full), 0
            self._row.clear()

    def unhealthy(self, reason: str, now: Now) -> None:
        """Note that the health URL fails: no probe goes, and a full failure streak was an outage."""
        self._well_until = -NEVER
        if self.doubted:
            self._out(now, reason)
        elif self.state is State.OUTAGE:
            self.probe_at, self.reason = NEVER, reason

    def storm(self, now: Now) -> None:
        """Begin an outage, whatever this instance has seen itself: the group-wide view sees a storm of failures."""
        if self.state not in AWAY:
            self._out(now, "a storm of failures in the group")

    # --- outage ------------------------------------------------------------------------------------------------------

    def _row_is_full(self, now: Now, reason: str) -> None:
        """Begin an outage; if there is a health URL, only if it fails."""
        if not self._guarded:
            self._out(now, reason)
        elif now.steady < self._well_until:
            self._row.clear()
        elif self.limit > 0:
            self.doubted, self.limit, self.probe_at = self.limit, 0, NEVER
            self.ask()

    def _note_away(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note an outcome in an outage.

        Only a probe can show that the service is back: deliveries sent before may end well while the service shuts
        down.
        """
        if all(record is not probe for probe in self._probes):
            self.limit -= self.state is State.PROBING  # its slot stays empty
            return
        self._probes = [probe for probe in self._probes if probe is not record]
        fails = isinstance(outcome, Failed) and not outcome.asked
        answered = not isinstance(outcome, Failed) or outcome.label == ANSWERED
        if isinstance(outcome, NotSent | Cancelled) or not answered or (fails and self.slowed and not self._guarded):
            self._still_out(now, refused=isinstance(outcome, NotSent))
        elif self.state is State.PROBING or not self._guarded:
            self._back(outcome, now)

    def _out(self, now: Now, reason: str, *, answers: bool = True) -> None:
        """Begin an outage. `answers`: the service can be reached, so only a success shows that it is well again."""
        self._backoff, self.slowed, self.doubted = FIRST_PROBE, answers, 0
        self._row.clear()
        self._shut(now)
        self.to(State.OUTAGE, now, reason)

    def _still_out(self, now: Now, *, refused: bool) -> None:
        if self.state is State.PROBING:
            self.slowed = self.slowed and not refused
            self._backoff = min(self._backoff * 2, self._interval if self.slowed else LAST_PROBE)
            self._shut(now)
            self.to(State.OUTAGE, now)

    def _shut(self, now: Now) -> None:
        self.limit, self._not_before = 0, now.steady + self._backoff
        self.probe_at = NEVER if self._guarded else self._not_before

    def _back(self, outcome: Outcome, now: Now) -> None:
        """End the outage, with one slot beside the deliveries that still hang."""
        self.limit, self.probe_at, self._credit = max(1, min(self.limit, self.full)), NEVER, 0
        self._probes.clear()
        if isinstance(outcome, Throttled):
            self.to(State.THROTTLED, now, ASKED.format(outcome.after))
        else:
            self.to(State.OPEN, now)
            self._answered(now, took=True)

    def _answered(self, now: Now, took: bool) -> None:
        """Note that the service is there. After a throttle the limit grows slowly, on successes alone."""
        self._row.clear()
        if self.limit > 0 and (self.state is State.OPEN or took):
            self.grow(now)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.limit >= 0, f"the limit is {self.limit}")
        ensure(self.state in AWAY or self.limit <= self.full, "no more than the full number may be in flight")
        ensure(self.state is not State.OUTAGE or self.limit == 0, "nothing goes in an outage")
        ensure(self.limit > 0 or self.probe_at != NEVER or self.unsure, "what lets nothing go has an end")
        ensure(self.doubted == 0 or self.limit == 0, "nothing goes while the health URL is asked")
        ensure(not self._probes or self.state in AWAY, "there are probes only in an outage")
        self.share.check()
