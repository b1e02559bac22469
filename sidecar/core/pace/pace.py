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

"The streak" in the table is a number of failures in a row, of several records (`Streak.fails`).

The pace changes how much is delivered, and never what an outcome counts for. An answered failure is an attempt, in an
outage too; a refused connection (NotSent) is not one.

An outage needs something that suffers. A service that failed all records, of which none is left, may be well: nothing
can show it, and nothing would be kept back. So an outage of the cause `failing` ends once nothing is open
(`note_open`).

Each start, and each outage that ends in `open`, begins a slow start: the limit doubles with each round of answers.

Each class knows one thing: `Pace` the state and the limit, `Streak` the failures that begin an outage, `Outage` the
probes that end it, `Answers` how much the limit grows and is cut, and `HealthUrl` what the health URL said. The
dispatcher notes each outcome and ticks the pace; the health check calls `healthy` and `unhealthy`. The pace is pure,
and used on the event loop alone, except for `idle_since`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from math import sqrt
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure, ensure_all
from reconsume.sidecar.core.outcome import (
    COMMITTED,
    CONNECTION_LOST,
    Cancelled,
    Committed,
    Died,
    Failed,
    NotSent,
    Outcome,
    Throttled,
)
from reconsume.sidecar.core.record import NEVER, Now, Record

FIRST_PROBE_MS = 100
"""ms from the beginning of an outage to the first probe: a service that restarts is away for a moment only."""
LAST_PROBE_MS = 5_000
"""ms between probes of an unreachable service at most: this late, at worst, the end of an outage is noticed."""
PROBE_INTERVAL_MS = 1_000
"""ms between probes at most while the service answers with failures (`deliver.outage_interval`): each is an attempt."""
PROBE_HANGS_MS = 5_000
"""ms after which another probe is sent alongside one without an answer: a healthy service may take minutes for a
record."""
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
TIMEOUT = "timeout"
"""The outcome label of a request that was not answered in time."""
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
"""One part in this many of the number is what it grows by in a round after a throttle. By one alone, a thousand slots
would take a thousand rounds."""
ASKED_FOR = "the service asked for {} ms"
FAILING_RECORDS = 3
"""Different records that must fail in a row before it is an outage: one poison record is none."""
FREE = 1 / 8
"""The share of answers that may ask for time and slow nothing down: one customer's limit asks a fixed share, however
few are in flight, so to slow down for it would cost all others and help nobody."""
LEAST = 64
"""Answers that a share is judged by at least. With fewer, chance alone makes a tenth look like a quarter."""
CHANCE = 2.0
"""Standard deviations by which a share must be above `FREE`: otherwise the pace would flicker."""
SURE = 8
"""Answers in a row that all ask for time, after which it is no chance, whatever came before them."""
ALL = 0.5
"""The part of the limit that is cut if all answers ask for time."""
CUT_EVERY_MS = 1_000
"""ms after which answers that all ask count again, if deliveries are too few to make a round."""
PATIENCE_MS = 10_000
"""ms after which `LEAST` answers are enough, if a round takes longer."""

START = Now(0, 0)


class State(StrEnum):
    """The pace. A probe is a part of its outage, so operators hear of `outage` where it is PROBING (`shown`)."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"

    @property
    def shown(self) -> State:
        """The state as `/status`, heartbeats, log lines and the metrics name it."""
        return State.OUTAGE if self in AWAY else self


class Cause(StrEnum):
    """Why there is an outage, as `/status`, the metrics and the dashboard name it."""

    UNREACHABLE = "unreachable"
    """No request was sent."""
    FAILING = "failing"
    """All that was sent failed, in whatever way. Each delivery is an attempt."""
    UNWELL = "unwell"
    """The health URL says so, or was not asked yet. Nothing is sent."""


class FailureEnd(StrEnum):
    """What becomes of a record that fails again and again, by the settings in force; in words for an outage."""

    DEAD_LETTER = "each failure uses up a retry, and a record becomes a dead letter when its retries are used up"
    PARKED = "each failure uses up a retry, and a record is parked with its key when its retries are used up"
    NEVER = "each record is retried in place until it succeeds, and no retries are used up"
    UNTOLD = "a failed record is not retried"
    """Of a broadcast."""


AWAY = frozenset({State.OUTAGE, State.PROBING})
OUTAGE_NOW = {
    Cause.UNREACHABLE: "the service is unreachable: one record at a time probes it, and no retries are used up",
    Cause.FAILING: "one record a second is delivered, and all fail: ",
    Cause.UNWELL: "the health URL does not say that the service is well: nothing is sent, and no retries are used up",
}
"""What an outage means now, by its cause; for `failing`, a `FailureEnd` follows.

The cause may be newer than the outage, so its duration comes before."""


def outage_now(cause: str | None, end: FailureEnd, *, is_idle: bool) -> str:
    """Return what an outage means now, for people. `is_idle`: no record is there to try the service with."""
    if is_idle:
        return "no record is ready for delivery: the next one shows whether the service is back"
    if cause not in set(Cause):
        return "only probes are delivered"
    return OUTAGE_NOW[Cause(cause)] + (end if cause == Cause.FAILING else "")


class Change(NamedTuple):
    """One change of state, or of the cause of an outage: then the state is as it was.

    `lasted_ms`: ms since the outage or the throttle began, or since the pace was open again. `cause`: None outside an
    outage.
    """

    was: State
    state: State
    reason: str
    lasted_ms: int
    cause: Cause | None = None


class Streak:
    """Failures in a row, without one success. `failures`: this many are an outage (None: never).

    Invariant: a streak knows no more records than it has failures, and no more than it needs.
    """

    def __init__(self, failures: int | None) -> None:
        self.length = 0
        self.spares_timeouts = False
        """Whether timeouts are no part of it, as fewer in flight may be the remedy (`concurrency.py`)."""
        self._failures = failures
        self._failed_ids: set[str] = set()
        self._failed_at: Now | None = None

    def fails(self, record: Record, label: str, now: Now) -> bool:
        """Note a failure; return whether it is one too many. A batch fails once: its records share one `Now`."""
        if self._failures is None or now is self._failed_at:
            return False
        if self.spares_timeouts and label == TIMEOUT:
            return False
        self._failed_at = now
        self.length += 1
        if len(self._failed_ids) < FAILING_RECORDS:
            self._failed_ids.add(record.id)
        return self.length >= self._failures and len(self._failed_ids) >= FAILING_RECORDS

    def end(self) -> None:
        """End the streak: a delivery has succeeded, or the outage has begun."""
        self.length = 0
        self._failed_ids.clear()

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(len(self._failed_ids) <= min(self.length, FAILING_RECORDS), "each record of a streak has failed in it")


class Outage:
    """The streak of failures that may begin an outage, the probes that end it, and the slow start after it.

    `failures`: as of `Streak`. `interval_ms`: between probes of a service that answers, at most. `request`: records of
    one request in a slow start.
    """

    def __init__(self, failures: int | None, interval_ms: int, request: int, since: Now) -> None:
        self.streak = Streak(failures)
        self.interval_ms, self.request = interval_ms, request
        self.probes: list[Record] = []
        """The probes in flight."""
        self.probing_since = since
        """When the last probe was allowed."""
        self.backoff_ms, self.not_before_ms = FIRST_PROBE_MS, -NEVER
        self.slowed = False
        """Whether answered failures keep deliveries back: in an outage, and in the slow start after it."""
        self.second_step = 0
        """How many may be in flight at least after the first answer of a slow start."""


class Answers:
    """How much the limit grows by answers, and is cut for those that ask for time.

    A service that is overloaded asks all of its callers, or more of them the more are in flight. So an eighth of the
    answers costs nothing, and what is beyond it is cut in proportion: by half if all answers ask. Deliveries that were
    in flight together get this answer together, so they are judged together, once a round.

    Invariant: those that ask for time are some of the answers.
    """

    def __init__(self) -> None:
        self.others = 0
        """Answers since the last one that asked for time, none of which did. The pace adds to it."""
        self.silent = False
        """Whether there was no answer since a tick was asked for."""
        self.credit = 0
        """Growth after a throttle that is not a whole delivery yet, in parts of the limit."""
        self._answers = self._throttled = self._round = self._row = 0
        self._all_asked_before = True
        """Whether all answers of the window before asked; so it is as long as there was none."""
        self._since_ms = -CUT_EVERY_MS

    def grown(self, limit: int, *, starts: bool) -> int:
        """Return the limit after one more answer: it doubles with each round if it `starts`, and grows by one a round,
        or by a part of it, after a throttle."""
        # Contract 8.4: doubled with each round in a slow start; after a throttle (8.5) by a part of it.
        self.credit += limit if starts else max(1, limit // GROWTH)
        if self.credit < limit:
            return limit
        self.credit -= limit
        return limit + 1

    def throttled(self, limit: int, now_ms: int) -> float:
        """Note an answer that asks for time, with `limit` deliveries in flight at most, at a steady time (ms).

        Return the part of the limit to cut: 0 if it is not yet time, or if the share is small; 0.5 if all answers ask.
        """
        window = max(limit, self._round, LEAST)
        self._row = 1 if self.others else self._row + 1
        if self.others >= window:
            self._begin(now_ms, all_asked=False)
        else:
            self._answers += self.others
        self.others = 0
        self._answers += 1
        self._throttled += 1
        lasted_ms, all_asked = now_ms - self._since_ms, self._throttled == self._answers
        # All of them ask, which chance does not explain: to wait for a whole sample would only ask more often in vain.
        if self._row >= SURE or (all_asked and self._all_asked_before):
            judged, cut = self._answers >= self._round or lasted_ms >= CUT_EVERY_MS, ALL
        else:
            judged = self._answers >= window or (self._answers >= LEAST and lasted_ms >= PATIENCE_MS)
            cut = cut_of(self._throttled / self._answers, self._answers)
        if not judged:
            return 0.0
        self._begin(now_ms, all_asked=all_asked)
        self._round = limit if cut else 0
        return cut

    def _begin(self, now_ms: int, *, all_asked: bool) -> None:
        """Begin another window. `all_asked`: whether all answers of the one before it asked for time."""
        self._answers = self._throttled = 0
        self._since_ms, self._all_asked_before = now_ms, all_asked

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(0 <= self._throttled <= self._answers, "those that ask are some of the answers")


def cut_of(share: float, answers: int) -> float:
    """Return the part of the limit to cut for a share of so many answers: 0 if chance can explain it."""
    if share < FREE + CHANCE * sqrt(FREE * (1 - FREE) / answers):
        return 0.0
    return (share - FREE) / (1 - FREE) * ALL


class HealthUrl:
    """What the health URL is asked, and what it said. Invariant: without one (not `guarded`) nothing is doubted."""

    def __init__(self, *, guarded: bool) -> None:
        self.guarded = guarded
        self.ask: Callable[[], None] = lambda: None
        """Asks the health URL at once; `Pace.healthy` or `Pace.unhealthy` is called with the answer."""
        self.well_until_ms = -NEVER
        """Until when (steady ms) a good answer holds."""
        self.doubted = 0
        """The limit that the health URL may give back, while it is asked what a full failure streak means; else 0."""

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.guarded or not self.doubted, "only a health URL is asked")


class Pace:
    """The number of deliveries that may be in flight at once, changed by their outcomes.

    `failures`, `interval_ms`: as of `Outage`. `guarded`: a health URL decides when a probe may go, also before the
    first delivery. `start`: records in the first request of a slow start (None: the start is at full pace). `since`:
    the time at the start.

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
        self.changes: Counter[State] = Counter()
        """How often each state was entered; an outage counts once, however many probes it has."""
        self.changed = changed
        """The callback for each change of state."""
        self.probe_at_ms = NEVER
        """The steady time at which more may be let out."""
        self.outage = Outage(failures, interval_ms, start or 1, since)
        self.answers = Answers()
        self.health = HealthUrl(guarded=guarded)
        if guarded:
            self.limit, self.state, self.reason = 0, State.OUTAGE, "not known to be healthy yet"
            self.cause = Cause.UNWELL

    # --- calls of the dispatcher and the lanes ------------------------------------------------------------------------

    def note(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Change the pace by the outcome of one delivery."""
        is_usual = outcome is COMMITTED and self.state is State.OPEN and self.limit == self.full
        if is_usual and not self.outage.streak.length:
            self.answers.others += 1
            return
        if self.state in AWAY:
            self._note_away(record, outcome, now)
            return
        self.answers.silent = False
        match outcome:
            # Contract 8.2: only failures in a row, of several records, mean that the service fails everything.
            case Failed(asked=False):
                if self.outage.streak.fails(record, outcome.label, now):
                    self._streak_is_full(now, outcome.reason)
                elif 0 < self.limit < self.full and self.state is State.OPEN and outcome.label == ANSWERED:
                    self._grow(now)
            # Contract 8.1: a refused connection is an outage at once. No attempt was made, so none is lost by waiting.
            case NotSent(reason=reason) | Died(reason=reason):
                if reason and self.limit > 0:  # in a pause, batches that were collected before come back so
                    self._begin_outage(now, reason, Cause.UNREACHABLE)
            case Throttled(after_ms=after_ms):
                self._slow_down(now, after_ms)
                return
            case Cancelled():
                pass
            case _:
                self._answered(now, took=isinstance(outcome, Committed))
        self.answers.others += 1

    def sent(self, record: Record, now: Now) -> None:
        """Note that a record was sent as a probe."""
        self.outage.probes.append(record)
        self.probe_at_ms = now.steady_ms + PROBE_HANGS_MS

    def note_open(self, *, is_open: bool, now: Now) -> None:
        """Note whether a record waits for anything, while there is none to probe with. Call it at each change."""
        if self.state is State.PROBING and self.cause is Cause.FAILING and not self.outage.probes:
            if is_open:
                self.probe_at_ms = NEVER
            elif self.probe_at_ms == NEVER:
                self.probe_at_ms = now.steady_ms + IDLE_AFTER_MS

    def idle_since(self, wall_ms: int) -> int | None:
        """Return since when (epoch ms) an outage has had no record to probe with; None if it has. For any thread."""
        since = self.outage.probing_since.wall_ms
        idle = self.state is State.PROBING and not self.outage.probes and wall_ms - since >= IDLE_AFTER_MS
        return since if idle else None

    def tick(self, now: Now, in_flight: int, *, full: bool = False) -> None:
        """Let more out when its time has come.

        `in_flight` deliveries may hang as long as they are allowed to, so more are sent alongside them. `full`: ready
        records may not take the slots that are left.
        """
        if self.slowed and self.state is State.OPEN and now.steady_ms - self.since.steady_ms >= SLOW_FOR_MS:
            self.outage.slowed = False
        if now.steady_ms < self.probe_at_ms:
            return
        self.probe_at_ms = NEVER
        full = full or in_flight >= self.limit
        if self.state is State.PROBING and not self.outage.probes:
            # Contract 8.2: nothing is open, so nothing suffers.
            self._enter(State.OPEN, now, NOTHING_OPEN)
        elif self.state in AWAY:
            self.limit = in_flight + 1
            self._enter(State.PROBING, now)
        elif self.limit == 0:
            self.limit = 1
        elif self.state is State.OPEN and full:
            self._let_out(self.limit + self.outage.request, now)
        elif full and self.answers.silent:
            # Alongside all that is in flight: before the throttle more of it was let out than is now.
            self._let_out(max(self.limit, in_flight) + 1, now)

    def resize(self, full: int) -> None:
        """Change the maximum in flight. Deliveries in flight, and an outage under way, are not affected."""
        if self.state not in AWAY:
            self.limit = full if self.state is State.OPEN and self.limit == self.full else min(self.limit, full)
        self.full = full

    def look(self, now: Now) -> None:
        """Have `tick` check whether what is in flight in a slow start or after a throttle hangs."""
        if self.state not in AWAY and self.probe_at_ms == NEVER and self.limit > 0:
            self.probe_at_ms = now.steady_ms + (START_HANGS_MS if self.state is State.OPEN else THROTTLE_HANGS_MS)
            self.answers.silent = True

    @property
    def slowed(self) -> bool:
        """Whether answered failures keep deliveries back: in an outage, and in the slow start after it."""
        return self.outage.slowed

    # --- calls of the health check -----------------------------------------------------------------------------------

    @property
    def unsure(self) -> bool:
        """Whether an answer of the health URL would change anything."""
        return self.state is State.OUTAGE or self.health.doubted > 0

    def healthy(self, now: Now) -> None:
        """Note that the health URL is well: go on as before, or let a probe go, but no sooner than it may."""
        self.health.well_until_ms = now.steady_ms + WELL_FOR_MS
        if self.state is State.OUTAGE:
            self.probe_at_ms = max(now.steady_ms, self.outage.not_before_ms)
        elif self.health.doubted:
            self.limit, self.health.doubted = min(self.health.doubted, self.full), 0
            self.outage.streak.end()

    def unhealthy(self, reason: str, now: Now) -> None:
        """Note that the health URL fails: no probe goes, and a full failure streak was an outage."""
        self.health.well_until_ms = -NEVER
        if self.health.doubted:
            self._begin_outage(now, reason, Cause.UNWELL)
        elif self.state is State.OUTAGE:
            self.probe_at_ms, self.reason = NEVER, reason
            self._blame(Cause.UNWELL, now, reason)

    # --- outage ------------------------------------------------------------------------------------------------------

    def _streak_is_full(self, now: Now, last_reason: str) -> None:
        """Begin an outage; if there is a health URL, only if it fails."""
        reason = f"{self.outage.streak.length} failures in a row, the last {last_reason}"
        # Contract 8.3: a health URL that is well says that failures in a row are the records' own.
        if not self.health.guarded:
            self._begin_outage(now, reason, Cause.FAILING)
        elif now.steady_ms < self.health.well_until_ms:
            self.outage.streak.end()
        elif self.limit > 0:
            self.health.doubted, self.limit, self.probe_at_ms = self.limit, 0, NEVER
            self.health.ask()

    def _note_away(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note an outcome in an outage.

        Only a probe can show that the service is back: deliveries sent before may end well while the service shuts
        down.
        """
        outage, guarded = self.outage, self.health.guarded
        others = [probe for probe in outage.probes if probe is not record]
        # Contract 8.1: only a probe ends an outage.
        if len(others) == len(outage.probes):
            self.limit -= self.state is State.PROBING  # the slot that it had stays empty
            return
        outage.probes = others
        match outcome:
            case NotSent() | Died():
                self._blame(Cause.UNREACHABLE, now, outcome.reason or CONNECTION_LOST)
            # Without an answer the service may be gone; while it fails everything, only a success ends the outage.
            case Failed() if outcome.label != ANSWERED or (outage.slowed and not (outcome.asked or guarded)):
                self._blame(Cause.FAILING, now, outcome.reason)
            case Cancelled():
                pass
            case _ if guarded and self.state is State.OUTAGE:
                return  # the health URL has failed since the probe was allowed
            case Throttled(after_ms=after_ms):
                self._enter(State.THROTTLED, now, ASKED_FOR.format(after_ms))
                return
            case _:
                self._enter(State.OPEN, now)
                self._answered(now, took=True)
                return
        if self.state is State.PROBING:
            outage.slowed = outage.slowed and not isinstance(outcome, NotSent | Died)
            outage.backoff_ms = min(outage.backoff_ms * 2, outage.interval_ms if outage.slowed else LAST_PROBE_MS)
            self._enter(State.OUTAGE, now)

    def _begin_outage(self, now: Now, reason: str, cause: Cause) -> None:
        """Begin an outage. If the service can be reached, only a success shows that it is well again."""
        self.outage.backoff_ms, self.outage.slowed = FIRST_PROBE_MS, cause is not Cause.UNREACHABLE
        self.outage.streak.end()
        self.health.doubted, self.cause = 0, cause
        self._enter(State.OUTAGE, now, reason)

    def _blame(self, cause: Cause, now: Now, reason: str) -> None:
        """Give an outage under way another cause, and report that."""
        if cause is not self.cause:
            self.cause, self.reason = cause, reason
            self.changed(Change(self.state, self.state, reason, now.steady_ms - self.since.steady_ms, cause))

    # --- the limit ----------------------------------------------------------------------------------------------------

    def _answered(self, now: Now, *, took: bool) -> None:
        """Note that the service is there. After a throttle the limit grows slowly, on successes alone."""
        self.outage.streak.end()
        if self.limit > 0 and (took or self.state is State.OPEN):
            self._grow(now)

    def _slow_down(self, now: Now, after_ms: int) -> None:
        """Cut the limit by the share of answers that ask for time, once a round; at one at a time, pause if all ask."""
        # Contract 8.5: by the share of answers that ask; at one delivery at a time, by a pause.
        cut = self.answers.throttled(self.limit, now.steady_ms) if self.limit > 0 else 0.0
        if not cut:
            return
        self.answers.credit = 0
        if self.limit > 1 or self.state is State.OPEN:
            self.limit, self.probe_at_ms = max(1, int(self.limit * (1 - cut))), NEVER
        elif cut == ALL:
            self.limit, self.probe_at_ms = 0, now.steady_ms + min(after_ms, LONGEST_PAUSE_MS)
        self._enter(State.THROTTLED, now, ASKED_FOR.format(after_ms))

    def _grow(self, now: Now) -> None:
        """Note one answer that lets the limit grow."""
        starts = self.state is State.OPEN
        limit = self.limit if self.limit >= self.full else self.answers.grown(self.limit, starts=starts)
        self._let_out(max(limit, self.outage.second_step) if starts else limit, now)

    def _let_out(self, limit: int, now: Now) -> None:
        """Let `limit` deliveries be in flight, up to the full number; at that number the pace is open."""
        self.limit = min(limit, self.full)
        if limit >= self.full:
            self.outage.slowed = False
            self._enter(State.OPEN, now)

    def _enter(self, state: State, now: Now, reason: str = "") -> None:
        """Change the state, and report the change."""
        was, self.state, outage = self.state, state, self.outage
        if state is was:
            return
        if state is State.OUTAGE:
            self.limit, outage.not_before_ms = 0, now.steady_ms + outage.backoff_ms
            self.probe_at_ms = NEVER if self.health.guarded else outage.not_before_ms
        elif state is State.PROBING:
            outage.probing_since = now
        elif was in AWAY:
            # Contract 8.4: a slow start, with room for one delivery in addition to those that still hang.
            self.limit, self.probe_at_ms, self.answers.credit = max(1, min(self.limit, self.full)), NEVER, 0
            self.cause = None
            outage.probes.clear()
        if state is State.THROTTLED:  # the service asks for time, and fails no more
            outage.slowed = False
        # A probe that fails goes back to the same outage.
        self.changes[state] += state is not State.OUTAGE or was not in AWAY
        lasted_ms = now.steady_ms - self.since.steady_ms
        if not {was, state} <= AWAY:  # each probe is part of its outage
            self.since, self.reason = now, reason
        self.changed(Change(was, state, self.reason, lasted_ms, self.cause))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        away = self.state in AWAY
        ensure_all(
            {
                f"the limit is {self.limit}": self.limit >= 0,
                "an outage has a cause, and nothing else has one": (self.cause is not None) == away,
                "no more than the full number may be in flight": away or self.limit <= self.full,
                "nothing goes in an outage": self.state is not State.OUTAGE or self.limit == 0,
                "what lets nothing go has an end": self.limit > 0 or self.probe_at_ms != NEVER or self.unsure,
                "nothing goes while the health URL is asked": self.health.doubted == 0 or self.limit == 0,
                "there are probes only in an outage": away or not self.outage.probes,
            }
        )
        for machine in (self.outage.streak, self.answers, self.health):
            machine.check()
