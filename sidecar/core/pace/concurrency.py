"""How many requests may be in flight where `deliver.concurrency` is `auto`: as many as the service works on at once.

A service works on so many requests at a time. Further ones wait in its queue while the timeout of the sidecar runs. No
service reports that number, but its response times show it: they are near their minimum as long as no request waits. So
the limit begins small, grows while response times are near their minimum, and shrinks when they rise, as TCP and
Netflix's concurrency-limits do.

    why       | event                                                                  | next limit
    ----------|------------------------------------------------------------------------|------------------------------
    begin     | the first success                                                      | `FIRST`
    grows     | a round that used the limit was near the minimum                       | twice as many, up to `MOST`
    grows     | the same after a step down                                             | 1/8 more, then 1/4, 1/2, 1
    grows     | a step down has cost a quarter of the throughput                       | as before the step
    grows     | the limit is used, and nothing was answered for a while                | one more
    slower    | two rounds that used the limit were `SLOWER`                           | what fits, a half at least
    slower    | the minimum is old, and a round that used the limit is above it        | a half, to measure it again
    timeouts  | a tenth of the responses of a round were timeouts                      | a half
    fixed     | a number is set: nothing is measured (`dispatcher.py`)                 |

A *round* is about one response time: it ends when as many requests have succeeded as the limit allows, of those that
were sent after the limit was last changed. Its response time is their mean. Services whose response times differ have
longer rounds, until the mean says something (`ERROR`). Only successes count: failures are often quick, and would make
the minimum too small. The first round after a change begins between two limits, so one slower round alone says nothing.

The *minimum* is the shortest mean within `WINDOW_MS`. Each kind of request has its own, by its path and the size of its
batch. A round that has several kinds is compared with the sum of what its requests take at least.

By Little's law the throughput is the number in flight, divided by the response time. If steps down cost a quarter of
it, the requests did not wait for each other: they take so long on their own. Then the steps are undone, and the minimum
is what requests take now. So a service that becomes slow, or whose response times differ widely, keeps its throughput.
A step goes to a half at most, so what was undone is below `SLOWER` afterwards, and is not tried again at once.

A queue that never ends would raise the minimum as the window moves on, and so itself. So when the minimum is old,
and the present one is longer, the limit is halved for one round.

Invariants: the limit is from 1 to `MOST`; no minimum is longer than what was measured since. The machine is pure. The
dispatcher owns it and applies the limit; the push client reports each response. All of it is on the event loop.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from math import sqrt
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure_all
from reconsume.sidecar.core.pace.topic_turns import RESERVE
from reconsume.sidecar.core.record import NEVER

FIRST = 4
"""Requests in flight once the service has answered for the first time. The first one goes alone."""
MOST = 256
"""The limit at most."""
MOST_REQUESTS = MOST + MOST // (RESERVE - 1)
"""Requests in flight at most: the limit, and those of a topic that comes while another one has taken all."""
NEAR = 1.25
"""Response times up to so many times the minimum are near it: a quarter of what is in flight waits in a queue."""
SLOWER = 1.5
"""From so many times the minimum on the limit shrinks."""
SLACK_MS = 10.0
"""ms above the minimum that are always near it: the service's own scheduling, the loop's, and ours. Twice as much never
shrinks the limit."""
LOSS = 0.25
"""The part of the throughput whose loss undoes a step down."""
CAREFUL = 1 / 8
"""By which part the limit grows first after a step down; the part doubles each time, up to the whole limit."""
ERROR = 0.15
"""The standard error of a round's mean, as a part of it, up to which the mean is used: an uneven service needs longer
rounds."""
SURE = 64
"""Responses after which a mean is used in any case, and of which the minimum is the mean."""
AS_BEFORE = 1.1
"""Times the old minimum up to which a new one shows that there is no queue."""
SPREAD = 3
"""Standard deviations above the mean that the slow requests of a round may take."""
TIGHT = 4
"""Response times from which on a timeout is that of a request that hangs, and not of one that waits."""
BURST = 1 / 8
"""The part of a response time that a burst of requests may take to be sent."""
TICK_MS = 1.0
"""What the loop's clock counts: what was sent in the same tick was sent before a step down."""
TIMEOUTS = 10
"""One response in so many must be a timeout for the limit to be halved."""
WINDOW_MS = 120_000
"""ms for which a minimum holds."""
WINDOW_ROUNDS = 32
"""Response times for which it holds at least: a round at half the limit costs throughput."""
HANGS_MS = 1_000
"""ms without a response after which one more request goes (contract 8.4). The next ones go after twice, three
times and four times as long, since a slow service would be given too much before its first response."""
MOST_TIMES = 3
HANGS_TIMES = 4
"""Response times, if these are longer."""
KINDS = 1_000
"""Kinds of requests that are known at most; only a test or an attack has so many."""


class Why(StrEnum):
    """Why the limit is what it is, as `/status` names it."""

    BEGIN = "begin"
    GROWS = "grows"
    SLOWER = "slower"
    TIMEOUTS = "timeouts"
    FIXED = "fixed"
    """A number is set: nothing is measured."""


class Shown(NamedTuple):
    """What `/status` shows. Times in ms; None if nothing was answered yet, or a number is set."""

    limit: int
    why: Why
    response_time: int | None = None
    minimum: int | None = None


class Before(NamedTuple):
    """What was before a step down: the limit, the throughput (requests a ms), and by which part the limit grew."""

    limit: int
    throughput: float
    growth: float


class HangWatch:
    """Notice that nothing is answered for a while, at the cost of one call a second while records wait."""

    def __init__(self) -> None:
        self.at_ms = NEVER
        """The steady time (ms) of the next look; NEVER: there is none."""
        self.responses = 0
        """Responses in all."""
        self._responses_before = 0
        self._times = 0
        """How often nothing was answered since the last response."""

    def begin(self, now_ms: int, usual_ms: float) -> None:
        """Begin to look, unless that is under way. `usual_ms`: how long a response takes."""
        if self.at_ms == NEVER:
            if self.responses != self._responses_before:
                self._times = 0
            self.at_ms = now_ms + max(HANGS_MS, int(HANGS_TIMES * usual_ms)) * (1 + self._times)
            self._responses_before = self.responses

    def is_hung(self, now_ms: int) -> bool:
        """Return whether it is time, and nothing was answered since the look began. The look is over then."""
        if now_ms < self.at_ms:
            return False
        self.at_ms = NEVER
        is_hung = self.responses == self._responses_before
        self._times = min(self._times + is_hung, MOST_TIMES)
        return is_hung


class Kind:
    """One kind of requests: its minimum, and what was measured of it."""

    __slots__ = ("answered", "minimum", "recent", "took_ms", "unsure")

    def __init__(self) -> None:
        self.minimum: float = NEVER
        """The shortest mean (ms) within the window."""
        self.recent: float = NEVER
        """The same since this window began."""
        self.answered, self.took_ms = 0, 0.0
        """Successes of this round, and the ms that they took together."""
        self.unsure = 0, 0.0
        """The same of former rounds, as long as they are too few for a mean."""

    def end_round(self, *, is_whole: bool) -> float:
        """Take what was measured into the minimum; return what the requests of the round take at least (ms).

        `is_whole`: whether the slow ones are among what was measured.
        """
        answered, before = self.answered, self.unsure
        count, total_ms = before[0] + answered, before[1] + self.took_ms
        if not is_whole and self.minimum < NEVER:
            count, total_ms = before
        elif count >= SURE or self.minimum == NEVER:
            mean = total_ms / count
            self.minimum, self.recent = min(self.minimum, mean), min(self.recent, mean)
            count, total_ms = 0, 0.0
        self.unsure, self.answered, self.took_ms = (count, total_ms), 0, 0.0
        return self.minimum * answered


class Round:
    """What is known of the present round. `since_ms`: the steady time from which on its requests were sent."""

    __slots__ = ("answered", "in_flight", "is_used", "responses", "since_ms", "squares", "timeouts", "took_ms")

    def __init__(self, since_ms: float) -> None:
        self.since_ms = since_ms
        self.answered, self.took_ms, self.squares = 0, 0.0, 0.0
        """Successes among them, the ms that they took together, and the sum of their squares."""
        self.responses = self.timeouts = 0
        """Responses since the round began, whenever their requests were sent, and the timeouts among them."""
        self.in_flight = 0
        """The most requests that were in flight."""
        self.is_used = False
        """Whether more would have been sent, had the limit allowed it."""

    @property
    def deviation_ms(self) -> float:
        """The standard deviation of the successes' times."""
        mean = self.took_ms / self.answered
        return sqrt(max(0.0, self.squares / self.answered - mean * mean))

    @property
    def is_even(self) -> bool:
        """Whether there are enough successes for their mean to say something."""
        return self.answered >= SURE or self.deviation_ms * sqrt(self.answered) <= ERROR * self.took_ms

    def is_whole(self, now_ms: float) -> bool:
        """Return whether even slow requests of the round were answered: the quick ones come first."""
        return now_ms - self.since_ms >= self.took_ms / self.answered + SPREAD * self.deviation_ms


class AutoConcurrency:
    """The limit that follows the service; see the top of the file.

    Invariants: the limit is from 1 to MOST; it grows by a part of itself; no minimum is longer than what was measured
    since.
    """

    def __init__(self) -> None:
        self.limit, self.why = 1, Why.BEGIN
        self.measured: tuple[float, float] | None = None
        """The response time of the last round, and its minimum (ms)."""
        self.hang = HangWatch()
        self._kinds: dict[Hashable, Kind] = {}
        self._round = Round(-NEVER)
        self._growth = 1.0
        """By which part of it the limit grows next."""
        self._before: Before | None = None
        """What was before the last steps down; None once the limit has grown."""
        self._is_suspected = False
        """Whether the round before was slower, too: the first one after a change is between two limits."""
        self._halved_ms: float = -NEVER
        """When timeouts halved the limit last. What was sent before that says the same again."""
        self._ceiling = MOST
        """What the limit grows to at most within this window: with more, requests waited until they timed out."""
        self._window_ends_ms: float = NEVER

    @property
    def limit_with_reserve(self) -> int:
        """Requests that may be in flight together with those of a topic that comes while another one has taken all.

        One in eight of these is kept for it (`topic_turns.py`). A topic that alone has records has `limit` of them.
        """
        return self.limit + max(1, self.limit // (RESERVE - 1))

    @property
    def shown(self) -> Shown:
        """What `/status` shows."""
        return Shown(self.limit, self.why, *(round(ms) for ms in self.measured or ()))

    def answered(self, kind: Hashable, sent_ms: float, now_ms: float, in_flight: int, *, is_used: bool) -> bool:
        """Note a success; return whether the limit has changed.

        `sent_ms`, `now_ms`: steady times. `in_flight`: requests, this one included. `is_used`: whether others wait for
        nothing but the limit.
        """
        current = self._round
        current.responses += 1
        self.hang.responses += 1
        if sent_ms < current.since_ms:
            return False
        one = self._kinds.get(kind) or self._new_kind(kind)
        took_ms = now_ms - sent_ms
        one.answered += 1
        one.took_ms += took_ms
        current.answered += 1
        current.took_ms += took_ms
        current.squares += took_ms * took_ms
        if is_used:
            current.is_used = True
        if in_flight > current.in_flight:
            current.in_flight = in_flight
        if self.measured is not None:
            if current.answered < self.limit or not current.is_even:
                return False
            if self._before is not None and not current.is_whole(now_ms):
                return False
        was = self.limit
        self._end_round(now_ms)
        return self.limit != was

    def failed(self) -> None:
        """Note a response that is no success."""
        self._round.responses += 1
        self.hang.responses += 1

    def timed_out(self, sent_ms: float, now_ms: float) -> bool:
        """Note a timeout; return whether the limit has changed."""
        current = self._round
        current.responses += 1
        self.hang.responses += 1
        if sent_ms <= self._halved_ms:
            return False
        current.timeouts += 1
        # A response time has about as many responses as there are requests in flight.
        if self.limit == 1 or current.timeouts * TIMEOUTS < max(current.responses, self.limit):
            return False
        if self.measured is not None and now_ms - sent_ms < TIGHT * self.measured[0]:
            self._ceiling = max(1, self.limit - max(1, self.limit // 8))
        self._halved_ms, self._before = now_ms, None
        self._set(self.limit // 2, Why.TIMEOUTS, now_ms)
        return True

    def look_for_hang(self, now_ms: int) -> None:
        """Have `let_out_if_hung` called in time. Call it while records wait for nothing but the limit."""
        if self.limit < MOST:
            self.hang.begin(now_ms, 0.0 if self.measured is None else self.measured[0])

    def let_out_if_hung(self, now_ms: int, in_flight: int) -> bool:
        """Let one request more out if nothing was answered since the look; return whether the limit has changed.

        `in_flight`: those that hang. They may be more than the limit, after a step down.
        """
        if not self.hang.is_hung(now_ms) or self.limit >= MOST:
            return False
        self.limit, self.why = min(MOST, max(self.limit, in_flight) + 1), Why.GROWS
        return True

    def _new_kind(self, kind: Hashable) -> Kind:
        if len(self._kinds) >= KINDS:
            self._kinds.clear()
        return self._kinds.setdefault(kind, Kind())

    def _end_round(self, now_ms: float) -> None:
        """Judge the round that ends, and begin another one."""
        current, is_first = self._round, self.measured is None
        is_whole = current.is_whole(now_ms)
        least_ms = sum(kind.end_round(is_whole=is_whole) for kind in self._kinds.values() if kind.answered)
        response_ms, minimum_ms = current.took_ms / current.answered, least_ms / current.answered
        self.measured = response_ms, minimum_ms
        self._round = Round(current.since_ms)
        is_old = now_ms >= self._window_ends_ms and self._move_window()
        if now_ms >= self._window_ends_ms or is_first:
            self._window_ends_ms = now_ms + max(WINDOW_MS, WINDOW_ROUNDS * response_ms)
        if is_first:
            self._set(max(FIRST, self.limit), Why.BEGIN, now_ms)
        elif current.is_used:
            self._judge(current, now_ms, is_old=is_old)

    def _judge(self, current: Round, now_ms: float, *, is_old: bool) -> None:
        """Choose the next limit after a round in which the limit was used."""
        response_ms, minimum_ms = self.measured or (0.0, 0.0)
        throughput = current.in_flight / max(response_ms, 0.001)
        before, above_ms = self._before, response_ms - minimum_ms
        was_suspected, self._is_suspected = self._is_suspected, False
        if before is not None and throughput < (1 - LOSS) * before.throughput:
            self._raise_minimum(response_ms / minimum_ms)
            self._set(before.limit, Why.GROWS, now_ms)
            self._before = None
            if response_ms > SLOWER * minimum_ms:  # there was no queue, so nothing was learned of one
                self._growth = before.growth
        elif is_old and self.limit > 1:
            self._step_down(self.limit // 2, throughput, now_ms)
        elif response_ms <= NEAR * minimum_ms or above_ms <= SLACK_MS:
            self._before = None
            self._grow(current, now_ms)
        elif response_ms > SLOWER * minimum_ms and above_ms > 2 * SLACK_MS:
            if not was_suspected:
                self._is_suspected = True
            elif self.limit > 1:
                fitting = round(current.in_flight * NEAR * minimum_ms / response_ms)
                self._step_down(max(1, self.limit // 2, min(fitting, self.limit - 1)), throughput, now_ms)
            else:  # nothing else was in flight: this is what a request takes
                self._raise_minimum(response_ms / minimum_ms)

    def _grow(self, current: Round, now_ms: float) -> None:
        growth, limit = self._growth, self.limit
        # Fewer timeouts than a tenth halve nothing, but they show that there is no room for more.
        if limit < self._ceiling and not current.timeouts:
            self._set(min(self._ceiling, limit + max(1, int(limit * growth))), Why.GROWS, now_ms)
            self._growth = min(1.0, growth * 2)

    def _step_down(self, limit: int, throughput: float, now_ms: float) -> None:
        # Of several steps the first one counts: each of them may cost little, and together they cost much.
        if self._before is None:
            self._before = Before(self.limit, throughput, self._growth)
        self._set(limit, Why.SLOWER, now_ms)

    def _set(self, limit: int, why: Why, now_ms: float) -> None:
        """Change the limit, and begin a round of what is sent from now on."""
        since_ms = now_ms
        if limit < self.limit:
            self._growth = CAREFUL
            since_ms += TICK_MS
        elif self.measured is not None:
            since_ms -= BURST * self.measured[1]
        self._round = Round(since_ms)
        for kind in self._kinds.values():
            kind.answered, kind.took_ms = 0, 0.0
        self.limit, self.why = limit, why

    def _raise_minimum(self, times: float) -> None:
        """Raise all minima by a factor: requests take so long by themselves."""
        for kind in self._kinds.values():
            if kind.minimum < NEVER:
                kind.minimum = kind.recent = kind.minimum * times

    def _move_window(self) -> bool:
        """Forget what was measured before this window; return whether a minimum is longer now."""
        is_old = False
        for kind in self._kinds.values():
            if kind.recent < NEVER:
                is_old = is_old or kind.recent > AS_BEFORE * kind.minimum + SLACK_MS
                kind.minimum = kind.recent
            kind.recent = NEVER
        self._ceiling = MOST
        return is_old

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure_all(
            {
                f"the limit is {self.limit}": 1 <= self.limit <= MOST,
                "growth is a part of the limit": 0 < self._growth <= 1,
                "a minimum is no longer than what was measured since": all(
                    kind.minimum <= kind.recent for kind in self._kinds.values()
                ),
            }
        )
