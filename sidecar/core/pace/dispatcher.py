"""Send the ready records of all lanes: gates first, then one weighted round robin over the flows.

The gates are the pace (`pace.py`), the rates (`rates.py`), and the single file of suspect partitions. What passes them
is chosen by turns and shares (`topic_turns.py`), so that no flow waits for another's end. While less than a quarter of
the slots is taken, all that is ready goes in turn; beyond it each flow has its share. While the pace probes, lanes and
partitions are probed in turn.

The lanes call `dispatch` whenever a record became ready or a slot free, and `answered` with each outcome; the timer of
a lane calls `tick`. Everything is on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from reconsume.sidecar.core.invariant import ensure, ensure_all
from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, Outcome
from reconsume.sidecar.core.pace.concurrency import FIRST, MOST_REQUESTS, AutoConcurrency, Shown, Why
from reconsume.sidecar.core.pace.pace import TIMEOUT, Pace, State
from reconsume.sidecar.core.pace.rates import DeliveryLimits, FlowKey, LimitFacts
from reconsume.sidecar.core.pace.refusals import Refusals
from reconsume.sidecar.core.pace.topic_turns import Flow, LaneQueue, ReadyFlows, Turns
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record

FEW = 4
"""Slots are shared once one part in this many of them is taken. With fewer in flight no flow has more than that, and
all that is ready goes at once; with a larger part, flows of which many wait would be too far from their shares."""


class SingleFile:
    """The partitions whose records go one at a time over all lanes, while the records of all others wait.

    `suspects.py` fills it. Usually it is empty, which costs nothing. Nobody waits for a partition whose own
    records wait for a limit of their topic: the dispatcher has it leave the file.

    Invariants: a partition that has its turn is in the file; while it has, no commit of a mark is waited for.
    """

    def __init__(self) -> None:
        self.sources: dict[Partition, None] = {}
        """Its partitions, in the order in which they joined. While there are any, only their records go."""
        self.marking: Partition | None = None
        """The partition whose commit must be in Kafka before any record goes."""
        self.turn: Partition | None = None
        """The partition whose marked record goes next, before any other."""
        self.hung: set[tuple[Partition, int]] = set()
        """Partition and offset of records that hang with the service: cleared by time, so nothing waits for them."""

    def join(self, source: Partition) -> None:
        """Deliver the records of a partition in single file, and keep those of all other partitions back."""
        self.sources[source] = None

    def leave(self, source: Partition) -> None:
        """End the single file of a partition; after the last one the records of all others go again."""
        self.sources.pop(source, None)
        if self.turn == source:
            self.turn = None

    def drop(self, source: Partition) -> None:
        """Forget a partition that is gone; nothing waits for its commit."""
        self.leave(source)
        if self.marking == source:
            self.marking = None

    def room(self, limit: int) -> int:
        """Return how many records may be in flight, where the pace allows `limit`."""
        # Contract 1.10: one suspect at a time, and none before its mark is in Kafka. What hung for 30 s is cleared, and
        # takes no room.
        return 0 if self.marking is not None else min(1 + len(self.hung), limit)

    @property
    def may_go(self) -> Collection[Partition]:
        """The partitions of which a record may go now."""
        return self.sources if self.turn is None else (self.turn,)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.turn is None or self.turn in self.sources, f"{self.turn} has its turn in the single file")
        ensure(self.turn is None or self.marking is None, "no mark is on its way while a marked record has its turn")


class Dispatcher:
    """Send the ready records of all lanes, with at most `pace.limit` deliveries in flight together.

    `unit`: how many records one request has at most. Invariants: `in_flight` is at least 0, and not less than what the
    flows have in flight; outcomes are being passed on only inside `answer_together`, or `answer_round`.
    """

    def __init__(self, pace: Pace, unit: int = 1, limits: DeliveryLimits | None = None) -> None:
        self.pace = pace
        self.limits = DeliveryLimits() if limits is None else limits
        self.in_flight = 0
        self.closed = False
        """Whether nothing is sent any more: the sidecar drains."""
        self.at_close: list[Callable[[], None]] = []
        """Callbacks for `close`."""
        self.refusals: Refusals | None = None
        """What notices a service that rejects everything; None where records are not pushed."""
        self.single_file = SingleFile()
        """The partitions whose records go one at a time, before all others."""
        self.gathering = False
        """Whether the outcomes of a batch are being passed on."""
        self.in_round = False
        """Whether responses that came together are being passed on, after which the next deliveries start."""
        self.auto: AutoConcurrency | None = None
        """The number in flight that follows the service; None if a number is set."""
        self.doubts = 0
        """Lanes that may have lost their partitions without knowing it; meanwhile nothing is sent
        (`outbox.py`)."""
        self._turns = Turns(unit)
        self._most = NEVER
        """How many may be in flight by the rate, until the next call of `dispatch`."""

    def join(self, lane: LaneQueue, weight: int = 1) -> None:
        """Add a lane to those that take turns. `weight`: its part of the deliveries, in proportion to the others."""
        lane.ready.join(lane, weight, self._turns, self.limits)

    def set_concurrency(self, requests: int | None) -> None:
        """Set how many requests may be in flight; None: as many as the service works on at once."""
        if requests is not None:
            self.auto = None
            self._turns.inner = NEVER
            self.pace.outage.streak.spares_timeouts, self.pace.outage.second_step = False, 0
            self.pace.resize(requests * self._turns.unit)
        elif self.auto is None:
            self.auto = AutoConcurrency()
            self._apply(self.auto)
            self.pace.outage.second_step = FIRST * self._turns.unit
        self._turns.changed()

    def _apply(self, auto: AutoConcurrency) -> None:
        """Have the pace allow what the limit that follows the service allows now."""
        # Contract 8.2: fewer in flight may be the remedy, so timeouts begin no outage before that was tried.
        self.pace.outage.streak.spares_timeouts = auto.limit > FIRST
        self._turns.inner = auto.limit * self._turns.unit
        self.pace.resize(auto.limit_with_reserve * self._turns.unit)

    @property
    def most_requests(self) -> int:
        """Requests that may be in flight, where that follows the service; NEVER where a number is set."""
        return NEVER if self.auto is None else self.auto.limit_with_reserve

    @property
    def most_records(self) -> int:
        """Records that can be in flight at most, whatever the service does."""
        return self.pace.full if self.auto is None else MOST_REQUESTS * self._turns.unit

    @property
    def concurrency(self) -> Shown:
        """What `/status` shows of the number in flight."""
        if self.auto is None:
            return Shown(self.pace.full // self._turns.unit, Why.FIXED)
        return self.auto.shown

    def close(self) -> None:
        """Send nothing more, for good."""
        self.closed = True
        for tell in self.at_close:
            tell()

    # --- what a lane asks ---------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether nothing more is sent until a delivery is answered, the pace changes, or another flow has records."""
        return self._no_room or (self.in_flight >= self._turns.usable and any(self._turns.lanes))

    @property
    def _no_room(self) -> bool:
        limit = self.pace.limit
        return self.in_flight >= (self.single_file.room(limit) if self.single_file.sources else limit)

    def tick(self, now: Now) -> None:
        """Have the pace let more out when its time has come, also where shares keep the last slots free."""
        if self.auto is not None and self.auto.let_out_if_hung(now.steady_ms, self.in_flight // self._turns.unit):
            self._apply(self.auto)
        self.pace.tick(now, self.in_flight, full=self.full)

    def look_for_hangs(self, now: Now) -> int:
        """Have the pace find out in time if what is in flight hangs; return the steady time (ms) of its next tick."""
        # At the full limit a hang costs nothing: no more could be let out.
        if self.in_flight and self.pace.limit < self.pace.full:
            self.pace.look(now)
        elif self.auto is not None and self.auto.hang.at_ms == NEVER and self._waits_for_concurrency:
            self.auto.look_for_hang(now.steady_ms)
        return self.next_at(now)

    def next_at(self, now: Now) -> int:
        """Return the steady time (ms) of the next tick: for the pace, or because records wait for a rate."""
        if self.doubts:
            return NEVER
        at_ms = self.pace.probe_at_ms
        if self.auto is not None and self.auto.hang.at_ms < at_ms:
            at_ms = self.auto.hang.at_ms
        if self.closed or not self.limits.active:
            return at_ms
        return min(at_ms, self.limits.next_at(now, full=self._waits_for_rate))

    @property
    def _waits_for_rate(self) -> bool:
        return self.in_flight >= self._most and any(self._turns.lanes) and not self._no_room

    def limit_facts(self) -> list[LimitFacts]:
        """Return the limits in force in addition to the pace, and whether records wait for them."""
        return self.limits.facts(full=self._waits_for_rate)

    def what_keeps(self, topic: str) -> NotDelivered:
        """Return why a ready record of a main topic is not sent now."""
        if self.closed:
            return NotDelivered.CLOSING
        if self.doubts:
            return NotDelivered.MEMBERSHIP
        if self.single_file.sources:
            return NotDelivered.SUSPECT
        if (limit := self.limits.topics.get(topic)) is not None and limit.binds:
            return NotDelivered.TOPIC_RATE if limit.binds == "rate" else NotDelivered.TOPIC_CONCURRENCY
        return NotDelivered.RATE if self._waits_for_rate else NotDelivered.PACE

    @property
    def _waits_for_concurrency(self) -> bool:
        """Whether records wait for nothing but the limit that follows the service."""
        pace = self.pace
        return pace.limit == pace.full and pace.state is State.OPEN and not self.single_file.sources and self.full

    # --- responses ----------------------------------------------------------------------------------------------------

    def responded(self, kind: Hashable, sent_ms: float, now_ms: float, in_flight: int, outcome: object) -> None:
        """Note the response to one request, before what it means for each record is passed on.

        `kind`: what its response time depends on. `sent_ms`, `now_ms`: of one steady clock. `in_flight`: requests, with
        this one. `outcome`: COMMITTED for a batch with verdicts.
        """
        auto = self.auto
        if auto is None:
            return
        if isinstance(outcome, Committed):
            is_used = in_flight >= auto.limit or self._waits_for_concurrency
            is_changed = auto.answered(kind, sent_ms, now_ms, in_flight, is_used=is_used)
        elif isinstance(outcome, Failed) and outcome.label == TIMEOUT:
            is_changed = auto.timed_out(sent_ms, now_ms)
        else:
            auto.failed()
            return
        if is_changed:
            self._apply(auto)

    # --- deliveries end -----------------------------------------------------------------------------------------------

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note that a delivery has ended."""
        self._free(self.limits.key(record) if self.limits.topics else record.source, 1)
        if self.single_file.hung:
            self.single_file.hung.discard((record.source, record.offset))
        self.pace.note(record, outcome, now)
        if self.refusals is not None and (outcome is not COMMITTED or self.refusals.rows):
            self.refusals.note(record, outcome, now)

    def committed_many(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service accepted all of these records of one partition by one answer."""
        self._free(records[0].source, len(records))
        if self.refusals is not None and self.refusals.rows:
            for record in records:  # a partition of a level may have records of several topics
                self.refusals.note(record, COMMITTED, now)
        if self.single_file.hung:
            self.single_file.hung.difference_update((record.source, record.offset) for record in records)
        for number, record in enumerate(records, 1):
            self.pace.note(record, COMMITTED, now)
            if self.pace.state is State.OPEN and self.pace.limit == self.pace.full:
                self.pace.answers.others += len(records) - number  # they change nothing else
                return

    def _free(self, key: FlowKey, count: int) -> None:
        """Free the slots of deliveries of a flow that have ended."""
        self.in_flight -= count
        for ready in self._turns.lanes:
            flow = ready.flows.get(key)
            if flow is not None and flow.out >= count:
                topic, self._turns.freed = flow.topic, flow
                flow.out -= count
                topic.out -= count
                ready.out -= count
                if topic.limit is not None:
                    topic.limit.out -= count
                if not flow.out:
                    topic.busy -= 1
                    if not flow.owned and not flow.records:
                        ready.forget(flow)
                return

    def answer_together(self, tell: Callable[[], None], now: Now) -> None:
        """Pass on the outcomes of a batch by `tell`: the next ones go when all have ended, not one by one."""
        self.gathering = True
        try:
            tell()
        finally:
            self.gathering = False
        for ready in tuple(self._turns.lanes):  # each may dispatch, which changes their order
            ready.lane.answered_in_bulk(now)

    def answer_round(self, tell: Callable[[], None], now: Callable[[], Now]) -> None:
        """Pass on responses that came together by `tell`, in their order: the next deliveries start after the last one.

        To fill each slot on its own would cost more than all that an answer means for its record.
        """
        self.in_round = True
        try:
            tell()
        finally:
            self.in_round = False
        for ready in tuple(self._turns.lanes):
            ready.lane.go_on(now())

    # --- deliveries begin ---------------------------------------------------------------------------------------------

    def dispatch(self, now: Now) -> None:
        """Send what may go: all slots are taken then, or no flow may take another one."""
        if self.gathering or self.in_round or self.closed or self.doubts:
            return
        turns, file, limit = self._turns, self.single_file, self.pace.limit
        self._most = self.in_flight + self.limits.room(now) if self.limits.active else NEVER
        most = limit if limit < self._most else self._most
        probing = self.pace.state is State.PROBING
        while self.in_flight < most:
            if file.sources or probing:
                flow = self._next_of_few(limit)
            # Contract 8.8: slots are shared once a quarter of them is taken; with fewer in flight all that is ready
            # goes at once.
            elif self.in_flight * FEW < limit:
                flow = turns.next_freely(most - self.in_flight)
            else:
                flow = turns.next_by_shares(self.in_flight, limit, most - self.in_flight)
            if flow is None:
                break
            record = self._send(flow, turns.granted, now)
            # Only an answer to this very record may end the outage: others were sent before it began.
            if probing and record is not None:
                self.pace.sent(record, now)
                flow.probed_ms = now.steady_ms
            if self.in_flight >= turns.usable and turns.limit == limit:
                break
        if probing:
            has_open = self.in_flight > 0 or any(ready.lane.has_open for ready in turns.lanes)
            self.pace.note_open(is_open=has_open, now=now)

    def _next_of_few(self, limit: int) -> Flow | None:
        """Return the flow that sends next while there is a single file, or while the pace probes; None if none may."""
        file, turns = self.single_file, self._turns
        if file.sources and self.in_flight >= file.room(limit):
            return None
        if file.turn is None and self.limits.topics:
            # Nothing of the file is in flight. A partition of which all that is ready waits for a limit of its topic
            # leaves it, and joins again when a record of it has its turn (`suspects.py`).
            for source in [one for one in file.sources if any(ready.at_rest(one) for ready in turns.lanes)]:
                file.leave(source)
        if file.sources:
            return turns.in_turn(ReadyFlows.first_of, file.may_go)
        # Contract 8.1: probes take lanes and partitions in turn, whatever their shares.
        if self.pace.state is State.PROBING:
            return turns.in_turn(turns.probe, self.pace.full)
        return turns.next_by_shares(self.in_flight, limit, min(limit, self._most) - self.in_flight)

    def _send(self, flow: Flow, count: int, now: Now) -> Record | None:
        """Send up to `count` records of a flow, unless a suspect among them begins the single file.

        Return the last one that was sent.
        """
        ready, records, topic, last, before = flow.ready, flow.records, flow.topic, None, self.in_flight
        send = ready.lane.send
        if topic.limit is not None:
            count = min(count, topic.limit.room(now.steady_ms))
        while count and records:
            record = records.popleft()
            if not records:
                ready.end(flow)
            if send(record, now):
                self.in_flight += 1
                last = record
            elif self.single_file.sources:
                break
            count -= 1
        if last is not None:
            sent = self.in_flight - before
            if not flow.out:
                topic.busy += 1
            flow.out += sent
            topic.out += sent
            ready.out += sent
            if topic.limit is not None:
                topic.limit.sent(sent, now.steady_ms)
            if self.limits.active:
                self.limits.instance.sent(sent, now.steady_ms)
        return last

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. Slow."""
        out = sum(ready.out for ready in self._turns.lanes)
        ensure_all(
            {
                f"{self.in_flight} deliveries are in flight": self.in_flight >= 0,
                f"what the flows have in flight, {out}, has its slot": out <= self.in_flight,
                f"{self.doubts} lanes are in doubt": self.doubts >= 0,
                "nothing is being answered between two calls": not (self.gathering or self.in_round),
            }
        )
        for machine in (self._turns, self.single_file, self.pace, self.limits, self.refusals, self.auto):
            if machine is not None:
                machine.check()
