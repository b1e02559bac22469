"""Share the places in flight between the lanes and their flows, so that no flow waits for another's end.

Lanes take turns by their weights, the topics of a lane in turn, and the partitions of a topic in turn (`flows.py`).
What each of them may have out is in `shares.py`. A turn is several records long, because a batch is best of one
partition, and because to choose a flow costs as much as to send a record. Within a turn a place that becomes free
stays with its flow, where that has no more than its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sidecar.core.invariant import ensure
from sidecar.core.outcome import COMMITTED, Outcome
from sidecar.core.pace.flows import Flow, ReadyFlows
from sidecar.core.pace.lane_turns import LaneTurn, shares_of
from sidecar.core.pace.pace import Pace, State
from sidecar.core.pace.probe_turns import ProbeTurns
from sidecar.core.pace.shares import Allowed, most_of_topic, next_flow
from sidecar.core.pace.single_file import SingleFile
from sidecar.core.record import NEVER, Now, Partition, Record

TURNS = 16
"""One part in this many of the places is how many records go in one turn, where that is more than a request holds. With
less the choices would cost more; with more, a flow that comes would wait longer."""


def _below_share(flow: Flow) -> int:
    """Return how many more records of a flow may be out by the bounds of the last turn."""
    topic = flow.topic
    each, most = topic.each - flow.out, topic.most - topic.out
    return each if each < most else most


class LaneQueue(Protocol):
    """A lane as the dispatcher sees it: records that may be delivered, and the method to send one."""

    @property
    def ready(self) -> ReadyFlows:
        """The records that may be delivered."""

    def send(self, record: Record, now: Now) -> bool:
        """Deliver the record; return False if it may not be delivered after all."""

    def answered_in_bulk(self, now: Now) -> None:
        """Continue, now that all outcomes of a batch were passed on."""


class Dispatcher:
    """Send the ready records of all lanes, with at most `pace.limit` deliveries in flight together.

    `unit`: how many records one request has at most. Invariants: `in_flight` is at least 0, and not less than what the
    flows have out; outcomes of a batch are being passed on only inside `answer_together`.
    """

    def __init__(self, pace: Pace, unit: int = 1) -> None:
        self.pace = pace
        self.in_flight = 0
        self.closed = False
        """Whether nothing is sent any more: the sidecar drains."""
        self.at_close: list[Callable[[], None]] = []
        """Callbacks for `close`."""
        self.single_file = SingleFile()
        """The partitions whose records go one at a time, before all others."""
        self.gathering = False
        """Whether the outcomes of a batch are being passed on."""
        self._unit = unit
        self._lanes: list[LaneTurn[LaneQueue]] = []
        self._usable = NEVER
        """The places that flows may take now, as far as is known: where shares keep places free it is less than the
        limit, and a flow need not be searched for at each answer. NEVER if it is not known."""
        self._topics = 0
        """How many topics the instance owns; 0 if it must be counted again."""
        self._limit = 0
        """The limit when that was found."""
        self._flow: Flow | None = None
        """The flow whose turn it is, for `_most` more records; None if another one must be chosen."""
        self._turn: LaneTurn[LaneQueue]
        """The lane of that flow."""
        self._most = 0
        self._remaining = 0
        """Records that may go before another flow must be chosen."""
        self._probe_turns = ProbeTurns()

    def join(self, lane: LaneQueue, weight: int = 1) -> None:
        """Add a lane to those that take turns. `weight`: its part of the deliveries, in proportion to the others."""
        self._lanes.append(LaneTurn(lane, lane.ready, weight))
        lane.ready.at_change = self._shares_change

    def close(self) -> None:
        """Send nothing more, for good."""
        self.closed = True
        for tell in self.at_close:
            tell()

    @property
    def full(self) -> bool:
        """Whether nothing more is sent until a delivery is answered, the pace changes, or another flow has records."""
        return self._no_room or (self.in_flight >= self._usable and any(turn.ready for turn in self._lanes))

    @property
    def _no_room(self) -> bool:
        limit = self.pace.limit
        return self.in_flight >= (self.single_file.room(limit) if self.single_file.sources else limit)

    def answer_together(self, tell: Callable[[], None], now: Now) -> None:
        """Pass on the outcomes of a batch by `tell`: their slots are filled when all are free, not one by one."""
        self.gathering = True
        try:
            tell()
        finally:
            self.gathering = False
        for turn in tuple(self._lanes):
            turn.lane.answered_in_bulk(now)

    def tick(self, now: Now) -> None:
        """Have the pace let more out when its time has come, also where shares keep the last places free."""
        self.pace.tick(now, self.in_flight, full=self.full)

    def look_for_hangs(self, now: Now) -> int:
        """Have the pace find out in time if what is in flight hangs; return the steady time (ms) of its next tick."""
        if self.in_flight and self.pace.limit < self.pace.full:
            self.pace.look(now)
        return self.pace.probe_at

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note that a delivery has ended."""
        self._ended(record.source, 1)
        if self.single_file.outlived:
            self.single_file.outlived.discard((record.source, record.offset))
        self.pace.note(record, outcome, now)

    def committed_many(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service accepted all of these records of one partition by one answer."""
        self._ended(records[0].source, len(records))
        if self.single_file.outlived:
            self.single_file.outlived.difference_update((record.source, record.offset) for record in records)
        for number, record in enumerate(records, 1):
            self.pace.note(record, COMMITTED, now)
            if self.pace.state is State.OPEN and self.pace.limit == self.pace.full:
                self.pace.share.others += len(records) - number  # they change nothing else
                return

    def _ended(self, source: Partition, count: int) -> None:
        self.in_flight -= count
        for turn in self._lanes:
            flow = turn.ready.ended(source, count)
            if flow is None:
                continue
            if self._most <= 0 < self._remaining:
                # The places that it has left stay with it, or go to the flow of the turn, if that has not its share.
                if flow.records and (most := _below_share(flow)) > 0:
                    self._flow, self._turn, self._most = flow, turn, min(count, most)
                elif self._flow is not None and self._flow.records and (most := _below_share(self._flow)) > 0:
                    self._most = min(count, most)
            return

    def dispatch(self, now: Now) -> None:
        """Send what may go, flow by flow, until all places are taken or no flow may take another one."""
        if self.gathering or self.closed:
            return
        if self.single_file.sources:
            self._send_in_single_file(now)
            return
        pace = self.pace
        if pace.state is State.PROBING:
            self._probe(now)
            return
        if pace.limit != self._limit:
            self._limit, self._usable = pace.limit, NEVER
        while self.in_flight < pace.limit and self.in_flight < self._usable:
            flow = self._flow if self._most > 0 else self._choose()
            if flow is None:
                self._usable = self.in_flight
            elif not flow.records:
                self._most = 0
            elif not self._send_turn(flow, now):
                self._send_in_single_file(now)
                return

    def _send_turn(self, flow: Flow, now: Now) -> bool:
        """Send records of the flow whose turn it is; return False if a suspect among them began the single file."""
        records, ready, send = flow.records, self._turn.ready, self._turn.lane.send
        most, sent = min(self._most, self.pace.limit - self.in_flight), 0
        while most and records:
            most -= 1
            self._most -= 1
            self._remaining -= 1
            record = records.popleft()
            if not records:
                ready.end(flow)
            if send(record, now):
                self.in_flight += 1
                sent += 1
            elif self.single_file.sources:
                most = 0
        if sent:
            ready.sent(flow, sent)
        return not self.single_file.sources

    def _choose(self) -> Flow | None:
        """Give the turn to the next flow that may take a place; return it, or None if there is none."""
        waiting = [turn for turn in self._lanes if turn.ready.turns]
        if not waiting:
            self._flow, self._most = None, 0
            return None
        limit, unit = self.pace.limit, self._unit
        most = most_of_topic(limit, unit, self._topics or self._count_topics())
        for turn, share in shares_of(waiting, limit):
            chosen = next_flow(turn.ready, Allowed(share, most, unit, len(waiting) > 1))
            if chosen is not None:
                self._flow, may_take = chosen
                self._turn, self._remaining = turn, max(unit, limit // TURNS)
                self._most = min(may_take, self._remaining, len(self._flow.records))
                turn.took(self._most, waiting)
                return self._flow
        self._flow, self._most = None, 0
        return None

    def _count_topics(self) -> int:
        self._topics = sum(len(turn.ready.topics) for turn in self._lanes)
        return self._topics

    def _shares_change(self) -> None:
        self._usable, self._topics = NEVER, 0

    def _send_in_single_file(self, now: Now) -> None:
        """Send the next record of the single file; some of its records may have to wait when their turn has come."""
        sources, empty = self.single_file, 0
        while not self._no_room and sources.sources and empty < len(self._lanes):
            turn = self._next_turn()
            taken = turn.ready.take_of(sources.may_go)
            if taken is None:
                empty += 1
                continue
            empty = 0
            self._send(turn, *taken, now)

    def _probe(self, now: Now) -> None:
        """Send as `dispatch` does, but the flow that was probed least recently goes first, whatever is out.

        The poison of one partition then delays no other.
        """
        if self._no_room:
            return
        for turn in self._lanes:
            self._probe_turns.deal(turn.ready)
        empty = 0
        while not self._no_room and empty < len(self._lanes):
            turn = self._next_turn()
            taken = turn.ready.take()
            if taken is None:
                empty += 1
                continue
            empty = 0
            self._send(turn, *taken, now)

    def _next_turn(self) -> LaneTurn[LaneQueue]:
        """Return the lane whose turn it is, and put it behind the others."""
        turn = self._lanes.pop(0)
        self._lanes.append(turn)
        return turn

    def _send(self, turn: LaneTurn[LaneQueue], flow: Flow, record: Record, now: Now) -> None:
        """Send a record; while the pace probes, it is the probe."""
        if turn.lane.send(record, now):
            self.in_flight += 1
            turn.ready.sent(flow)
            if self.pace.state is State.PROBING:
                self.pace.sent(record, now)
                self._probe_turns.took(record.source)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. Slow."""
        ensure(self.in_flight >= 0, f"{self.in_flight} deliveries are out")
        out = sum(topic.out for turn in self._lanes for topic in turn.ready.topics.values())
        ensure(out <= self.in_flight, f"what the flows have out, {out}, has its place in flight")
        ensure(not self.gathering, "no batch is being answered between two calls")
        self.single_file.check()
        self.pace.check()
