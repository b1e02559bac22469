"""A model of services on virtual time, behind the real dispatcher, for the limit that follows the service.

A `Service` works on so many requests at a time and keeps the others in a queue; how long it works on one may depend on
the time and on chance. A `Run` delivers a backlog of records, as fast as the dispatcher lets them go, and gives up what
is not answered in time, while the service works on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from tests.sim.samples import record

TIMEOUT = Failed("timeout", "no answer", "timeout")
REFUSED = Failed("http-500")
MAIN = Partition("orders", 0)
OTHER = Partition("refunds", 0)


@dataclass
class Service:
    """A service with `threads`. `work`: ms for a request that begins at a time (ms), by chance."""

    threads: int
    work: Callable[[int, Random], int]
    hangs: Callable[[Record], bool] = lambda record: False
    """Whether a record is never answered; it takes no thread."""
    longest_queue: int = 1_000_000
    """Requests that may wait; more are refused at once, with a 500."""
    queue: deque[tuple[Record, int]] = field(default_factory=deque)
    busy: int = 0


class Lane:
    """A lane that sends all of its records; a record that times out comes again."""

    has_open = True

    def __init__(self, run: Run) -> None:
        self.ready, self._run = ReadyFlows(), run

    def send(self, record: Record, now: Now) -> bool:
        self._run.begin(record)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        """Nothing is answered in batches here."""


class Run:
    """The delivery of a backlog to a service, with a limit that follows it, or a fixed number."""

    def __init__(
        self, service: Service, records: int, *, timeout_ms: int = 30_000, number: int | None = None, seed: int = 1
    ) -> None:
        self.service, self.timeout_ms, self.now_ms, self.random = service, timeout_ms, 0, Random(seed)
        self.gate = Dispatcher(Pace(256 if number is None else number, failures=20, start=1))
        self.gate.set_concurrency(number)
        self.done_ms: list[int] = []
        """When each success came."""
        self.executions = self.timeouts = self.refusals = 0
        self.limits: list[tuple[int, int, str]] = []
        """Time (ms), limit and why, at each change."""
        self.responses: list[tuple[int, int]] = []
        """Time (ms) and duration (ms) of each success."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._offsets, self._steps = count(), count(), 0
        self._out: dict[int, tuple[Record, int]] = {}
        """The requests in flight, by number: their records, and when they were sent."""
        self.lane = Lane(self)
        for source in (MAIN, OTHER):
            self.lane.ready.own(source)
        self.gate.join(self.lane)
        self.come(records)

    def come(self, records: int, source: Partition = MAIN) -> None:
        """Let so many records become ready."""
        self.lane.ready.extend([record(next(self._offsets), source=source) for _ in range(records)])
        self._turn()

    @property
    def in_flight(self) -> int:
        return len(self._out)

    @property
    def hanging(self) -> list[Record]:
        """The records in flight that are never answered."""
        return [one for one, _ in self._out.values() if self.service.hangs(one)]

    def of(self, source: Partition) -> int:
        """Return how many records of a partition are in flight."""
        return sum(one.source == source for one, _ in self._out.values())

    def answer_next(self, outcome: Outcome) -> None:
        """Have the oldest request answered at once."""
        self._end(next(iter(self._out)), outcome)

    def at(self, ms: int, call: Callable[[], None]) -> None:
        """Call at a time."""
        heapq.heappush(self._events, (ms, next(self._order), call))

    def begin(self, one: Record) -> None:
        """Send a request."""
        number = next(self._order)
        self._out[number] = one, self.now_ms
        self.at(self.now_ms + self.timeout_ms, lambda: self._end(number, TIMEOUT))
        if self.service.hangs(one):
            return
        if len(self.service.queue) >= self.service.longest_queue:
            self.refusals += 1
            self.at(self.now_ms + 1, lambda: self._end(number, REFUSED))
            return
        self.service.queue.append((one, number))
        self._work()

    def _work(self) -> None:
        service = self.service
        while service.queue and service.busy < service.threads:
            _, number = service.queue.popleft()
            service.busy += 1
            self.executions += 1
            self.at(self.now_ms + service.work(self.now_ms, self.random), lambda number=number: self._worked(number))

    def _worked(self, number: int) -> None:
        self.service.busy -= 1
        self._work()
        self._end(number, COMMITTED)

    def _end(self, number: int, outcome: Outcome) -> None:
        if number not in self._out:
            return
        gate, now = self.gate, Now(self.now_ms, self.now_ms)
        one, sent_ms = self._out[number]
        gate.responded("", sent_ms, self.now_ms, len(self._out), outcome)
        del self._out[number]
        if outcome is COMMITTED:
            self.done_ms.append(self.now_ms)
            self.responses.append((self.now_ms, self.now_ms - sent_ms))
        else:
            self.timeouts += outcome is TIMEOUT
            self.lane.ready.append(one)
        gate.answered(one, outcome, now)
        self._turn()

    def _turn(self) -> None:
        now = Now(self.now_ms, self.now_ms)
        self.gate.dispatch(now)
        self.gate.look_for_hangs(now)
        shown = self.gate.concurrency
        if not self.limits or self.limits[-1][1:] != (shown.limit, str(shown.why)):
            self.limits.append((self.now_ms, shown.limit, str(shown.why)))

    def until(self, ms: int = NEVER, *, done: int | None = None) -> Run:
        """Go on up to a time, or until so many records are done."""
        while self._events or self.gate.next_at(Now(self.now_ms, self.now_ms)) < NEVER:
            if done is not None and len(self.done_ms) >= done:
                break
            tick_ms = self.gate.next_at(Now(self.now_ms, self.now_ms))
            next_ms = min(tick_ms, self._events[0][0] if self._events else NEVER)
            if next_ms > ms:
                self.now_ms = ms
                break
            self.now_ms = max(self.now_ms, next_ms)
            if tick_ms <= self.now_ms:
                self.gate.tick(Now(self.now_ms, self.now_ms))
                self._turn()
            else:
                heapq.heappop(self._events)[2]()
            self._steps += 1
            if self._steps % 100 == 0:
                self.gate.check()
        return self

    def until_outage(self, ms: int) -> int:
        """Go on until an outage begins, up to a time; return when it began (ms)."""
        while self.gate.pace.state is State.OPEN:
            assert self.now_ms < ms, "no outage"
            self.until(self.now_ms + 100)
        return self.now_ms

    def rate(self, from_ms: int, to_ms: int) -> float:
        """Return the records a second that were done in a time."""
        return sum(from_ms <= at < to_ms for at in self.done_ms) / (to_ms - from_ms) * 1000

    def limit_at(self, ms: int) -> int:
        """Return the limit at a time."""
        return [limit for at, limit, _ in self.limits if at <= ms][-1]
