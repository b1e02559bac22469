"""Share the places in flight between the lanes and their flows, so that no flow waits for another's end.

Lanes take turns by their weights, topics of a lane in turn, and partitions of a topic in turn (`topic_turns.py`). What
each of them may have out is in `shares.py`. A turn is several records long, because a batch is best of one partition,
and because to choose a flow costs as much as to send a record. Within a turn a place that becomes free stays with its
flow, where that has no more than its share.

A rate is a bound beside the places (`limits.py`): a record that waits for it stays ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outcome import COMMITTED, Outcome
from reconsume.sidecar.core.pace.flow_turns import FlowTurns
from reconsume.sidecar.core.pace.lane_turns import HAD, took
from reconsume.sidecar.core.pace.limits import DeliveryLimits, LimitFacts
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.pace.probe_turns import ProbeTurns
from reconsume.sidecar.core.pace.refusals import Refusals
from reconsume.sidecar.core.pace.shares import has_share, most_for, most_places
from reconsume.sidecar.core.pace.single_file import SingleFile
from reconsume.sidecar.core.pace.topic_turns import Flow, ReadyFlows
from reconsume.sidecar.core.record import NEVER, Now, Record

FEW = 4
"""Places are shared once one part in this many of them is taken. With fewer out no flow has more than that, and all
that is ready goes at once; with a larger part, flows of which many wait would be too far from their shares."""


class LaneQueue(Protocol):
    """A lane as the dispatcher sees it: records that may be delivered, and the method to send one."""

    @property
    def ready(self) -> ReadyFlows:
        """The records that may be delivered."""

    def send(self, record: Record, now: Now) -> bool:
        """Deliver the record; return False if it may not be delivered after all."""

    @property
    def has_open(self) -> bool:
        """Whether a record of its partitions is not done, or waits to be read."""

    def answered_in_bulk(self, now: Now) -> None:
        """Continue, now that all outcomes of a batch were passed on."""


class Dispatcher:
    """Send the ready records of all lanes, with at most `pace.limit` deliveries in flight together.

    `unit`: how many records one request has at most. Invariants: `in_flight` is at least 0, and not less than what the
    flows have out; outcomes of a batch are being passed on only inside `answer_together`.
    """

    def __init__(self, pace: Pace, unit: int = 1, limits: DeliveryLimits | None = None) -> None:
        self.pace = pace
        self.limits = DeliveryLimits() if limits is None else limits
        self._most = NEVER
        """How many may be in flight by the rate, until the next call of `dispatch`."""
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
        self.doubts = 0
        """Lanes that may have lost their partitions without knowing it; meanwhile nothing is sent
        (`membership_doubt.py`)."""
        self._unit = unit
        self._lanes: list[LaneQueue] = []
        self._ready: list[ReadyFlows] = []
        """The flows of each lane."""
        self._turns = FlowTurns(self._ready, unit)
        self._flow: Flow | None = None
        """The flow whose turn it is."""
        self._remaining = 0
        """Records that may go before another flow has its turn."""
        self._freed: Flow | None = None
        """The flow of the delivery that ended last; None if its place was taken again."""
        self._probe_turns = ProbeTurns()

    def join(self, lane: LaneQueue, weight: int = 1) -> None:
        """Add a lane to those that take turns. `weight`: its part of the deliveries, in proportion to the others."""
        self._lanes.append(lane)
        self._ready.append(lane.ready)
        lane.ready.join(lane.send, weight, self._turns.changed, self._topics_changed, self.limits.topics)

    def close(self) -> None:
        """Send nothing more, for good."""
        self.closed = True
        for tell in self.at_close:
            tell()

    @property
    def full(self) -> bool:
        """Whether nothing more is sent until a delivery is answered, the pace changes, or another flow has records."""
        return self._no_room or (self.in_flight >= self._turns.usable and any(self._ready))

    @property
    def _no_room(self) -> bool:
        limit = self.pace.limit
        return self.in_flight >= (self.single_file.room(limit) if self.single_file.sources else limit)

    @property
    def _waits_for_rate(self) -> bool:
        return self.in_flight >= self._most and any(self._ready) and not self._no_room

    @property
    def _may_send(self) -> bool:
        return self.in_flight < self._most and not self._no_room

    def answer_together(self, tell: Callable[[], None], now: Now) -> None:
        """Pass on the outcomes of a batch by `tell`: the next ones go when all have ended, not one by one."""
        self.gathering = True
        try:
            tell()
        finally:
            self.gathering = False
        for lane in self._lanes:
            lane.answered_in_bulk(now)

    def tick(self, now: Now) -> None:
        """Have the pace let more out when its time has come, also where shares keep the last places free."""
        self.pace.tick(now, self.in_flight, full=self.full)

    def look_for_hangs(self, now: Now) -> int:
        """Have the pace find out in time if what is in flight hangs; return the steady time (ms) of its next tick."""
        # At the full limit a hang costs nothing: no more could be let out.
        if self.in_flight and self.pace.limit < self.pace.full:
            self.pace.look(now)
        return self.next_at(now)

    def next_at(self, now: Now) -> int:
        """Return the steady time (ms) of the next tick: for the pace, or because records wait for a rate."""
        if self.doubts:
            return NEVER
        if self.closed or not self.limits.active:
            return self.pace.probe_at_ms
        return min(self.pace.probe_at_ms, self.limits.next_at(now, full=self._waits_for_rate))

    def limit_facts(self) -> list[LimitFacts]:
        """Return the limits in force beside the pace, and whether records wait for them."""
        return list(self.limits.facts(full=self._waits_for_rate))

    def waits_for_rate(self, topic: str | None) -> bool:
        """Return whether records of a topic wait for a rate, its own or that of all; None: whether any do."""
        return any(
            facts.waits and facts.limit != "concurrency" and (topic is None or facts.topic in (None, topic))
            for facts in self.limit_facts()
        )

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note that a delivery has ended."""
        self.in_flight -= 1
        topics = self.limits.topics
        key = record.source if topics is None else topics.key(record)
        for ready in self._ready:
            flow = ready.flows.get(key)
            if flow is not None and flow.out:
                ready.ended(flow)
                self._freed = flow
                break
        if self.single_file.hung:
            self.single_file.hung.discard((record.source, record.offset))
        self.pace.note(record, outcome, now)
        if self.refusals is not None and (outcome is not COMMITTED or self.refusals.rows):
            self.refusals.note(record, outcome, now)

    def committed_many(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service accepted all of these records of one partition by one answer."""
        self.in_flight -= len(records)
        for ready in self._ready:
            flow = ready.flows.get(records[0].source)
            if flow is not None and flow.out >= len(records):
                ready.ended(flow, len(records))
                break
        if self.refusals is not None and self.refusals.rows:
            for record in records:  # a partition of a level may have records of several topics
                self.refusals.note(record, COMMITTED, now)
        if self.single_file.hung:
            self.single_file.hung.difference_update((record.source, record.offset) for record in records)
        for number, record in enumerate(records, 1):
            self.pace.note(record, COMMITTED, now)
            if self.pace.state is State.OPEN and self.pace.limit == self.pace.full:
                self.pace.throttle_cut.others += len(records) - number  # they change nothing else
                return

    def dispatch(self, now: Now) -> None:
        """Send what may go: all places are taken then, or no flow may take another one."""
        if self.gathering or self.closed or self.doubts:
            return
        before = self.in_flight
        self._most = before + self.limits.room(now) if self.limits.active else NEVER
        if self.single_file.sources:
            self._send_in_single_file(now)
        limit = self.pace.limit
        if self.single_file.sources:
            pass  # all others wait
        elif self.pace.state is State.PROBING:
            self._probe(now)
            self.pace.note_open(is_open=self.in_flight > 0 or any(lane.has_open for lane in self._lanes), now=now)
        # Contract 8.8: places are shared once a quarter of them is taken; with fewer out all that is ready goes.
        elif self.in_flight * FEW < limit:
            self._send_freely(limit, now)
        else:
            self._send_by_shares(limit, now)
        if self.limits.active and self.in_flight > before:
            self.limits.rate.sent(self.in_flight - before)

    def _send_freely(self, limit: int, now: Now) -> None:
        """Send records in turn until so many are out that places are shared, or nothing is ready.

        Most records of a service that keeps up go this way: to divide the places for each would cost more than to send.
        """
        while self.in_flight * FEW < limit and self.in_flight < self._most:
            waiting = [ready for ready in self._ready if ready.turns]
            if not waiting:
                return
            ready = waiting[0] if len(waiting) == 1 else min(waiting, key=HAD)
            flow, before = ready.next(), self.in_flight
            if self._unit == 1:
                self._send_first(flow, now)
            else:
                self._send_some(flow, min(self._unit, limit - before, self._most - before), now)
            if len(waiting) > 1:
                took(ready, self.in_flight - before, waiting)
            if self.single_file.sources:
                self._send_in_single_file(now)
                return
        self._send_by_shares(limit, now)

    def _send_by_shares(self, limit: int, now: Now) -> None:
        """Send records flow by flow.

        Within a turn a place that became free stays with its flow, if that has records and its share; else it goes to
        the flow of the turn.
        """
        turns = self._turns
        if limit != turns.limit:
            turns.divide(limit)
        flow, self._freed = self._freed, None
        most = min(limit, self._most)
        while self.in_flight < most and self.in_flight < turns.usable:
            if flow is None or not flow.records:
                flow = self._flow
            if flow is not None and self._remaining > 0 and flow.records and has_share(flow):
                # The rest of its turn: to look for the next flow for each record would cost more than to send it.
                self._remaining -= 1
                self._send_first(flow, now)
            elif not self._send_next(most, now):
                return
            flow = None
            if self.single_file.sources:
                self._send_in_single_file(now)
                return
            if turns.limit == 0:
                turns.divide(limit)

    def _send_next(self, limit: int, now: Now) -> bool:
        """Give the turn to the next flow that may take a place, and send some of it; return False if there is none.

        `limit`: how many may be in flight.
        """
        turns = self._turns
        self._flow = flow = turns.next(self.in_flight)
        if flow is None:
            return False
        before, self._remaining = self.in_flight, turns.length
        if turns.length == 1:
            self._remaining = 0
            self._send_first(flow, now)
        else:
            most = min(turns.length, limit - before, most_for(flow), len(flow.records))
            self._remaining -= most
            self._send_some(flow, most, now)
        if len(turns.waiting_lanes) > 1:
            turns.took(flow, self.in_flight - before)
        return True

    def _send_first(self, flow: Flow, now: Now) -> None:
        """Send the first record of a flow."""
        ready, records = flow.ready, flow.records
        record = records.popleft()
        if not records:
            ready.end(flow)
        if ready.send(record, now):
            self.in_flight += 1
            ready.sent(flow)

    def _send_some(self, flow: Flow, most: int, now: Now) -> None:
        """Send up to `most` records of a flow, unless a suspect among them begins the single file."""
        ready, records, before = flow.ready, flow.records, self.in_flight
        send = ready.send
        if flow.topic.limit is not None:
            most = min(most, flow.topic.limit.room())
        while most and records:
            most -= 1
            record = records.popleft()
            if not records:
                ready.end(flow)
            if send(record, now):
                self.in_flight += 1
            elif self.single_file.sources:
                break
        if (sent := self.in_flight - before) > 0:
            ready.sent(flow, sent)

    def _topics_changed(self) -> None:
        self._turns.topics_changed()
        self.limits.rate.stale = True  # contract 8.9: what this instance owns is its part of the group's rate

    def _send_in_single_file(self, now: Now) -> None:
        """Send the next record of the single file; some of its records may have to wait when their turn has come."""
        sources, empty = self.single_file, 0
        while self._may_send and sources.sources and empty < len(self._ready):
            taken = self._next_lane().take_of(sources.may_go)
            if taken is None:
                empty += 1
                continue
            empty = 0
            self._send(*taken, now)
        if self._may_send and sources.turn is None and self.limits.topics is not None:
            self._leave_to_others()

    def _leave_to_others(self) -> None:
        """Let partitions leave the single file of which only records are ready that wait for a limit of their topic.

        Nothing of the file is out. Such a partition joins again when a record of it has its turn (`crash_gate.py`).
        """
        for source in tuple(self.single_file.sources):
            if any(ready.at_rest(source) for ready in self._ready):
                self.single_file.leave(source)

    def _probe(self, now: Now) -> None:
        """Send as `dispatch` does, but the flow that was probed least recently goes first, whatever its share.

        The poison of one partition then delays no other.
        """
        if self._no_room:
            return
        # Contract 8.1: probes take lanes and partitions in turn.
        most = most_places(self.pace.full, self._unit, sum(len(ready.topics) for ready in self._ready))
        for ready in self._ready:
            self._probe_turns.deal(ready, most)
        empty = 0
        while self._may_send and empty < len(self._ready):
            taken = self._probe_turns.take(self._next_lane(), most)
            if taken is None:
                empty += 1
                continue
            empty = 0
            self._send(*taken, now)

    def _next_lane(self) -> ReadyFlows:
        """Return the lane whose turn it is, and put it behind the others."""
        ready = self._ready.pop(0)
        self._ready.append(ready)
        return ready

    def _send(self, flow: Flow, record: Record, now: Now) -> None:
        """Send a record; while the pace probes, it is the probe."""
        if flow.ready.send(record, now):
            self.in_flight += 1
            flow.ready.sent(flow)
            # Only an answer to this very record may end the outage: others were sent before it began.
            if self.pace.state is State.PROBING:
                self.pace.sent(record, now)
                self._probe_turns.took(record.source)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. Slow."""
        ensure(self.in_flight >= 0, f"{self.in_flight} deliveries are out")
        out = sum(topic.out for ready in self._ready for topic in ready.topics.values())
        ensure(out <= self.in_flight, f"what the flows have out, {out}, has its place in flight")
        ensure(self.doubts >= 0, f"{self.doubts} lanes are in doubt")
        ensure(not self.gathering, "no batch is being answered between two calls")
        self._turns.check()
        self.single_file.check()
        self.pace.check()
        self.limits.check()
        if self.refusals is not None:
            self.refusals.check()
