"""How many deliveries may be in flight: all of them, fewer when the service asks for time, one at a time in an outage.

    state     | event                                                | next state
    ----------|------------------------------------------------------|-----------
    open      | a connection is refused                              | outage
    open      | the streak is full                                   | outage
    open      | the streak is full, and the health URL is well       | open
    open      | the streak is full, and the health URL fails         | outage
    open      | the service asks for time                            | throttled
    open      | a few of many answers ask for time                   | open
    throttled | a connection is refused                              | outage
    throttled | the streak is full                                   | outage
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
    probing   | it was failing, and nothing is open for a while      | open

What the states mean:

    open:      deliveries up to the full number, or to the limit of a slow start
    throttled: fewer deliveries, because the service asked for time
    outage:    no delivery, because the service fails or cannot be reached
    probing:   one delivery at a time, to learn whether the service is back

"The streak" in the table is a number of failures in a row, of several records (`FailureStreak`).

The pace changes how much is delivered, and never what an outcome counts for. An answered failure is an attempt, in an
outage too; a refused connection (NotSent) is none.

An outage needs something that suffers. A service that failed all records, of which none is left, may be well: nothing
can show it, and nothing would be kept back. So an outage of the cause `failing` ends once nothing is open
(`note_open`).

Each start, and each outage that ends in `open`, begins a slow start: the limit doubles with each round of answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outcome import COMMITTED, Cancelled, Committed, Failed, NotSent, Outcome, Throttled
from reconsume.sidecar.core.pace.state_names import AWAY, Cause, Change, State
from reconsume.sidecar.core.pace.throttle_cut import ALL, ThrottleCut
from reconsume.sidecar.core.record import NEVER, Now, Record

__all__ = ["AWAY", "Cause", "Change", "Pace", "State"]

FIRST_PROBE_MS = 100
"""ms from the beginning of an outage to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE_MS = 5_000
"""ms between probes of an unreachable service at most: this late, at worst, the end of an outage is noticed."""
PROBE_INTERVAL_MS = 1_000
"""ms between probes at most while the service answers with failures (`deliver.outage_interval`): each is an attempt."""
PROBE_HANGS_MS = 5_000
"""ms after which another probe goes beside one without an answer: a healthy service may take minutes for a record."""
SLOW_FOR_MS = 10_000
"""ms of an open pace after which answered failures slow nothing down, even if the slow start has not reached the full
number. With few records it may take days, and until then each partition would have only a share of the memory."""
IDLE_AFTER_MS = 5_000
"""ms without a record to probe with after which an outage is idle; without any open one, after which one that was
failing is over. A copy is read back from its level, and open again, only a moment after it was written."""
NOTHING_OPEN = "no record is left to deliver; the next ones show whether the service is well"
WELL_FOR_MS = 1_000
"""ms for which an answer of the health URL holds: if all records fail, it is asked once a second, not at each
streak."""
ANSWERED = "retry"
"""The outcome label of a failure that the service answered. Without an answer the service may be gone."""
LONGEST_PAUSE_MS = 5_000
"""ms without any delivery, at most, if one at a time is still too many. The Retry-After of a single record must not
stop a whole group."""
START_HANGS_MS = 1_000
"""ms after which a slow start without an answer lets one more request out. Without it the first record of a start could
delay all others for the whole of `deliver.timeout`."""
THROTTLE_HANGS_MS = 5_000
"""ms without any answer after which a throttled pace lets one more request out. Without it a single record that the
service works on for long would delay all others."""
GROWTH = 32
"""One part in this many of the number is what it grows by in a round after a throttle. By one alone, a thousand places
would take a thousand rounds."""
ASKED_FOR = "the service asked for {} ms"
FAILING_RECORDS = 3
"""Different records that must fail in a row before it is an outage: one poison record is none."""

START = Now(0, 0)


class FailureStreak:
    """Failures in a row, without one success; `limit` of them are an outage (None: never).

    Invariant: it knows no more records than it has failures, and no more than it needs.
    """

    def __init__(self, limit: int | None) -> None:
        self.length = 0
        self._limit = limit
        self._record_ids: set[str] = set()
        self._last: Now | None = None

    def add(self, record: Record, now: Now) -> bool:
        """Add a failure; return whether it is one too many. A batch fails once: its records share one `Now`."""
        if self._limit is None or now is self._last:
            return False
        self._last = now
        self.length += 1
        if len(self._record_ids) < FAILING_RECORDS:
            self._record_ids.add(record.id)
        return self.length >= self._limit and len(self._record_ids) >= FAILING_RECORDS

    def clear(self) -> None:
        """Begin anew, usually after a success."""
        self.length = 0
        self._record_ids.clear()

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(len(self._record_ids) <= min(self.length, FAILING_RECORDS), "each record of a streak has failed in it")


class Pace:
    """The number of deliveries that may be in flight at once, changed by their outcomes.

    `failures`: this many in a row are an outage (None: never). `interval_ms`: between probes of a service that answers,
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
        interval_ms: int = PROBE_INTERVAL_MS,
        guarded: bool = False,
        start: int | None = None,
        changed: Callable[[Change], None] = lambda change: None,
        since: Now = START,
    ) -> None:
        self.full = full
        self.limit = min(start or full, full)
        self.state = State.OPEN
        self.reason = ""
        self.cause: Cause | None = None
        """Why there is an outage; None outside one."""
        self.since = since
        """When the outage or the throttle began, or when the pace was open again."""
        self._probing_since = since
        """When the last probe was allowed."""
        self.changes: Counter[State] = Counter()
        """How often each state was entered; an outage counts once, however many probes it has."""
        self.changed = changed
        """The callback for each change of state."""
        self.probe_at_ms = NEVER
        """The steady time at which more may be let out."""
        self.slowed = False
        """Whether answered failures keep deliveries back: in an outage, and in the slow start after it."""
        self._request = start or 1
        self.throttle_cut = ThrottleCut()
        self._answers = self._answers_before = self._credit = 0
        self.doubted = 0
        """The limit that the health URL may give back, while it is asked what a full failure streak means; else 0."""
        self.ask: Callable[[], None] = lambda: None
        """Asks the health URL at once; `healthy` or `unhealthy` is called with the answer."""
        self._guarded, self._interval_ms = guarded, interval_ms
        self._streak = FailureStreak(failures)
        self._probes: list[Record] = []
        self._backoff_ms, self._not_before_ms, self._well_until_ms = FIRST_PROBE_MS, -NEVER, -NEVER
        if guarded:
            self.limit, self.state, self.reason = 0, State.OUTAGE, "not known to be healthy yet"
            self.cause = Cause.UNWELL

    # --- calls of the dispatcher and the lanes ------------------------------------------------------------------------

    def note(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Change the pace by the outcome of one delivery."""
        if outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full and not self._streak.length:
            self.throttle_cut.others += 1
            return
        if self.state in AWAY:
            self._note_away(record, outcome, now)
            return
        match outcome:
            # Contract 8.1: a refused connection is an outage at once. No attempt was made, so none is lost by waiting.
            case NotSent(reason=reason):
                if self.limit > 0:  # in a pause, batches that were collected before come back so
                    self._out(now, reason, Cause.UNREACHABLE)
            case Throttled(after_ms=after_ms):
                self._cut(now, after_ms)
            # Contract 8.2: only failures in a row, of several records, mean that the service fails everything.
            case Failed(asked=False):
                if self._streak.add(record, now):
                    self._streak_is_full(now, f"{self._streak.length} failures in a row, the last {outcome.reason}")
                elif self.limit < self.full and self.state is State.OPEN and outcome.label == ANSWERED:
                    self._grow(now)
            case Cancelled():
                pass
            case _:
                self._answered(now, isinstance(outcome, Committed))
        self._answers += 1
        self.throttle_cut.others += not isinstance(outcome, Throttled)

    def sent(self, record: Record, now: Now) -> None:
        """Note that a record has gone out as a probe."""
        self._probes.append(record)
        self.probe_at_ms = now.steady_ms + PROBE_HANGS_MS

    def note_open(self, *, is_open: bool, now: Now) -> None:
        """Note whether a record waits for anything, while there is none to probe with. Call it at each change."""
        if self.state is not State.PROBING or self._probes or self.cause is not Cause.FAILING:
            return
        if is_open:
            self.probe_at_ms = NEVER
        elif self.probe_at_ms == NEVER:
            self.probe_at_ms = now.steady_ms + IDLE_AFTER_MS

    def idle_since(self, wall_ms: int) -> int | None:
        """Return since when (epoch ms) an outage has had no record to probe with; None if it has. For any thread."""
        since = self._probing_since.wall_ms
        idle = self.state is State.PROBING and not self._probes and wall_ms - since >= IDLE_AFTER_MS
        return since if idle else None

    def tick(self, now: Now, in_flight: int, *, full: bool = False) -> None:
        """Let more out when its time has come.

        `in_flight` deliveries may hang as long as they are allowed to, so more go beside them. `full`: what is ready
        may not take the places that are left.
        """
        if self.slowed and self.state is State.OPEN and now.steady_ms - self.since.steady_ms >= SLOW_FOR_MS:
            self.slowed = False
        if now.steady_ms < self.probe_at_ms:
            return
        self.probe_at_ms = NEVER
        if self.state is State.PROBING and not self._probes:
            # Contract 8.2: nothing is open, so nothing suffers.
            self._reopen()
            self._to(State.OPEN, now, NOTHING_OPEN)
        elif self.state in AWAY:
            self.limit = in_flight + 1
            self._to(State.PROBING, now)
        elif self.limit == 0:
            self.limit = 1
        elif self.state is State.OPEN and (full or in_flight >= self.limit):
            self._let_out(self.limit + self._request, now)
        elif (full or in_flight >= self.limit) and self._answers == self._answers_before:
            # Beside all that is out: before the throttle more of it was let out than is now.
            self._let_out(max(self.limit, in_flight) + 1, now)

    def resize(self, full: int) -> None:
        """Change the maximum in flight. Deliveries in flight, and an outage under way, are not affected."""
        if self.state is State.OPEN and self.limit == self.full:
            self.limit = full
        elif self.state not in AWAY:
            self.limit = min(self.limit, full)
        self.full = full

    def look(self, now: Now) -> None:
        """Have `tick` check whether what is in flight in a slow start or after a throttle hangs."""
        if self.state not in AWAY and self.probe_at_ms == NEVER and self.limit > 0:
            self.probe_at_ms = now.steady_ms + (START_HANGS_MS if self.state is State.OPEN else THROTTLE_HANGS_MS)
            self._answers_before = self._answers

    # --- calls of the health check -----------------------------------------------------------------------

    @property
    def unsure(self) -> bool:
        """Whether an answer of the health URL would change anything."""
        return self.state is State.OUTAGE or self.doubted > 0

    def healthy(self, now: Now) -> None:
        """Note that the health URL is well: go on as before, or let a probe go, but no sooner than it may."""
        self._well_until_ms = now.steady_ms + WELL_FOR_MS
        if self.state is State.OUTAGE:
            self.probe_at_ms = max(now.steady_ms, self._not_before_ms)
        elif self.doubted:
            self.limit, self.doubted = min(self.doubted, self.full), 0
            self._streak.clear()

    def unhealthy(self, reason: str, now: Now) -> None:
        """Note that the health URL fails: no probe goes, and a full failure streak was an outage."""
        self._well_until_ms = -NEVER
        if self.doubted:
            self._out(now, reason, Cause.UNWELL)
        elif self.state is State.OUTAGE:
            self.probe_at_ms, self.reason = NEVER, reason
            self._blame(Cause.UNWELL, now)

    # --- outage ------------------------------------------------------------------------------------------------------

    def _streak_is_full(self, now: Now, reason: str) -> None:
        """Begin an outage; if there is a health URL, only if it fails."""
        # Contract 8.3: a health URL that is well says that failures in a row are the records' own.
        if not self._guarded:
            self._out(now, reason, Cause.FAILING)
        elif now.steady_ms < self._well_until_ms:
            self._streak.clear()
        elif self.limit > 0:
            self.doubted, self.limit, self.probe_at_ms = self.limit, 0, NEVER
            self.ask()

    def _note_away(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note an outcome in an outage.

        Only a probe can show that the service is back: deliveries sent before may end well while the service shuts
        down.
        """
        # Contract 8.1: only a probe ends an outage.
        if all(record is not probe for probe in self._probes):
            self.limit -= self.state is State.PROBING  # the room that it had stays empty
            return
        self._probes = [probe for probe in self._probes if probe is not record]
        fails = isinstance(outcome, Failed) and not outcome.asked
        answered = not isinstance(outcome, Failed) or outcome.label == ANSWERED
        if isinstance(outcome, NotSent | Cancelled) or not answered or (fails and self.slowed and not self._guarded):
            if isinstance(outcome, NotSent):
                self._blame(Cause.UNREACHABLE, now, outcome.reason)
            elif isinstance(outcome, Failed):
                self._blame(Cause.FAILING, now, outcome.reason)
            self._still_out(now, refused=isinstance(outcome, NotSent))
        elif self.state is State.PROBING or not self._guarded:
            self._back(outcome, now)

    def _out(self, now: Now, reason: str, cause: Cause) -> None:
        """Begin an outage. If the service can be reached, only a success shows that it is well again."""
        self._backoff_ms, self.slowed, self.doubted = FIRST_PROBE_MS, cause is not Cause.UNREACHABLE, 0
        self._streak.clear()
        self._shut(now)
        self.cause = cause
        self._to(State.OUTAGE, now, reason)

    def _blame(self, cause: Cause, now: Now, reason: str = "") -> None:
        """Give an outage under way another cause, and report that. `reason`: the present one stays if it is empty."""
        if cause is self.cause:
            return
        self.cause, self.reason = cause, reason or self.reason
        self.changed(Change(self.state, self.state, self.reason, now.steady_ms - self.since.steady_ms, cause))

    def _still_out(self, now: Now, *, refused: bool) -> None:
        if self.state is State.PROBING:
            self.slowed = self.slowed and not refused
            self._backoff_ms = min(self._backoff_ms * 2, self._interval_ms if self.slowed else LAST_PROBE_MS)
            self._shut(now)
            self._to(State.OUTAGE, now)

    def _shut(self, now: Now) -> None:
        self.limit, self._not_before_ms = 0, now.steady_ms + self._backoff_ms
        self.probe_at_ms = NEVER if self._guarded else self._not_before_ms

    def _back(self, outcome: Outcome, now: Now) -> None:
        """End the outage, with room for one delivery beside the deliveries that still hang."""
        self._reopen()
        if isinstance(outcome, Throttled):
            self._to(State.THROTTLED, now, ASKED_FOR.format(outcome.after_ms))
        else:
            self._to(State.OPEN, now)
            self._answered(now, took=True)

    def _reopen(self) -> None:
        # Contract 8.4: a slow start follows each outage.
        self.limit, self.probe_at_ms, self._credit = max(1, min(self.limit, self.full)), NEVER, 0
        self._probes.clear()

    def _answered(self, now: Now, took: bool) -> None:
        """Note that the service is there. After a throttle the limit grows slowly, on successes alone."""
        self._streak.clear()
        if self.limit > 0 and (self.state is State.OPEN or took):
            self._grow(now)

    # --- the number -------------------------------------------------------------------------------------------------

    def _cut(self, now: Now, after_ms: int) -> None:
        """Slow down by the share of answers that ask for time, once a round (`ThrottleCut`).

        At one delivery at a time, pause if all answers ask.
        """
        # Contract 8.5: by the share of answers that ask; at one delivery at a time, by a pause.
        cut = self.throttle_cut.throttled(self.limit, now.steady_ms) if self.limit > 0 else 0.0
        if not cut:
            return
        self._credit = 0
        if self.limit > 1 or self.state is State.OPEN:
            self.limit, self.probe_at_ms = max(1, int(self.limit * (1 - cut))), NEVER
        elif cut == ALL:
            self.limit, self.probe_at_ms = 0, now.steady_ms + min(after_ms, LONGEST_PAUSE_MS)
        self._to(State.THROTTLED, now, ASKED_FOR.format(after_ms))

    def _grow(self, now: Now) -> None:
        """Note one answer.

        In a slow start the number doubles with each round; after a throttle it grows by one a round, or by a part of
        it.
        """
        limit = self.limit
        # Contract 8.4: doubled with each round in a slow start; after a throttle (8.5) by a part of it.
        if limit < self.full:
            self._credit += limit if self.state is State.OPEN else max(1, limit // GROWTH)
        while self._credit >= limit and limit < self.full:
            self._credit -= limit
            limit += 1
        self._let_out(limit, now)

    def _let_out(self, limit: int, now: Now) -> None:
        """Let `limit` deliveries be in flight, up to the full number; at that number the pace is open."""
        self.limit = min(limit, self.full)
        if limit >= self.full:
            self.slowed = False
            self._to(State.OPEN, now)

    def _to(self, state: State, now: Now, reason: str = "") -> None:
        """Change the state, and report the change."""
        if state is self.state:
            return
        if state is State.PROBING:
            self._probing_since = now
        was, self.state = self.state, state
        self.cause = self.cause if state in AWAY else None
        self.slowed = self.slowed and state is not State.THROTTLED  # then the service asks for time, and fails no more
        # A probe that fails goes back to the same outage.
        self.changes[state] += state is not State.OUTAGE or was not in AWAY
        lasted_ms = now.steady_ms - self.since.steady_ms
        if not {was, state} <= AWAY:  # each probe is part of its outage
            self.since, self.reason = now, reason
        self.changed(Change(was, state, self.reason, lasted_ms, self.cause))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.limit >= 0, f"the limit is {self.limit}")
        ensure((self.cause is None) == (self.state not in AWAY), "an outage has a cause, and nothing else has one")
        ensure(self.state in AWAY or self.limit <= self.full, "no more than the full number may be in flight")
        ensure(self.state is not State.OUTAGE or self.limit == 0, "nothing goes in an outage")
        ensure(self.limit > 0 or self.probe_at_ms != NEVER or self.unsure, "what lets nothing go has an end")
        ensure(self.doubted == 0 or self.limit == 0, "nothing goes while the health URL is asked")
        ensure(not self._probes or self.state in AWAY, "there are probes only in an outage")
        self.throttle_cut.check()
        self._streak.check()
