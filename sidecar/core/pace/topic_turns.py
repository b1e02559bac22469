"""The records of a lane that may be delivered, as flows that take turns, and how many slots each flow may take.

A flow is one partition; it is known by the partition of its records, so a second source of records next to a main
partition has a flow of its own. Lanes take turns by their weights, topics of a lane in turn, and the partitions of a
topic within its turn. A level topic and the ready topic are topics like any other, so a redrive is a flow next to the
levels. Where a main topic has limits of its own (`rates.py`), its copies are flows of their own in the partitions that
they share with others; while the limit is reached they rest and have no turn.

A flow also counts its records in flight, since its share of the slots depends on them. It exists as long as its
partition is owned or something of it is in flight. No flow waits for the end of another, by two rules:

    share    while others of its kind have ready records too, it takes no new slot above its share; at least one
    reserve  some slots are never taken by one topic alone, nor all slots of a topic by one partition alone

Records in flight keep their slots for as long as they take; a share only decides who takes the next one. The reserve is
there before a second flow comes, so a topic or partition whose every request hangs leaves slots to others. A flow that
has nothing in flight may take a slot although its topic, or lane, has more than its share.

`Turns` is one weighted round robin over the flows. It divides the slots when a flow begins or ends to have ready
records, or the limit is another one; otherwise it only compares.

The lane fills its `ReadyFlows`; `dispatcher.py` takes records out. All of it is pure and used on the event loop.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol, TypeVar

from reconsume.sidecar.core.invariant import ensure, ensure_all
from reconsume.sidecar.core.pace.rates import DeliveryLimits, FlowKey, Limit
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record

RESERVE = 8
"""One slot in this many is never taken by one topic alone. With a smaller part, one hung topic would leave the others
too few slots to matter; with a larger one, a topic that is alone would be slower than it could be."""
FEWEST = 2
"""Flows of a topic, and topics of a lane, that may have a slot each although the share is smaller: with one slot a
second flow would wait for the end of the first one."""
TURNS = 16
"""One part in this many of the slots is how many records go in one turn, where that is more than a request holds. With
less the choices would cost more; with more, a flow that comes would wait longer."""
HAD = attrgetter("had")
"""What a lane has had, by its weight: the lane that has had least is next."""
PROBED = attrgetter("probed_ms")


T = TypeVar("T")


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

    def go_on(self, now: Now) -> None:
        """Do what follows from the answers that were passed on."""


class TopicFlows:
    """The flows of one topic, or what a main topic with limits of its own has in it."""

    __slots__ = ("busy", "each", "flows", "limit", "name", "out", "ready", "rests", "share", "turns")

    def __init__(self, name: str, ready: ReadyFlows, limit: Limit | None) -> None:
        self.name, self.ready, self.limit = name, ready, limit
        self.rests = limit is not None and limit.reached
        """Whether its limit is reached, so that it has no turn."""
        self.flows: list[Flow] = []
        self.turns: deque[Flow] = deque()
        """Its flows that have ready records, in the order of their turns."""
        self.out = 0
        """Its records in flight."""
        self.busy = 0
        """How many of its flows have records in flight."""
        self.share = self.each = 0
        """The slots that it, and each of its flows, may have (`Turns`)."""


class Flow:
    """The ready records of one partition, in the order in which they go."""

    __slots__ = ("key", "out", "owned", "probed_ms", "ready", "records", "source", "topic")

    def __init__(self, key: FlowKey, source: Partition, topic: TopicFlows) -> None:
        self.key, self.source, self.topic, self.ready = key, source, topic, topic.ready
        self.records: deque[Record] = deque()
        self.out = 0
        """Its records in flight, also those of a former assignment."""
        self.owned = True
        self.probed_ms = -NEVER
        """When it was probed last (steady ms)."""


class Turns:
    """The turns of the flows of all lanes. `unit`: how many records one request has at most.

    Invariant: while the slots are divided, each lane that waits is one of `lanes`.
    """

    def __init__(self, unit: int = 1) -> None:
        self.unit = unit
        self.lanes: list[ReadyFlows] = []
        """The flows of each lane, the next lane to probe first."""
        self.waiting: list[ReadyFlows] = []
        """The lanes that had ready records when the slots were divided, the next one first."""
        self.limit = 0
        """The limit for which the slots were divided; 0 if they must be divided again."""
        self.usable = NEVER
        """The slots that flows may take now, as far as is known: where shares keep slots free it is less than the
        limit, and a flow need not be searched for at each answer. NEVER if it is not known."""
        self.length = unit
        """Records of a turn. A turn is several records long, because a batch is best of one partition, and because to
        choose a flow costs as much as to send a record."""
        self.granted = 1
        """Records that the flow may send that was chosen last."""
        self.remaining = 0
        """Records that may be sent before another flow has its turn."""
        self.freed: Flow | None = None
        """The flow of the delivery that ended last; None if its slot was taken again. Within a turn the slot stays with
        its flow, where that has no more than its share."""
        self.most = NEVER
        """The slots that one topic may take; the others are the reserve. NEVER if there is none."""
        self.inner = NEVER
        """Where the limit follows the service: the slots that the service works on at once. What the limit has beyond
        them is a reserve: only where one topic has taken all of them may others take more. NEVER for a fixed number."""
        self.total = NEVER
        """The slots that all flows together may take."""

    def changed(self) -> None:
        """Note that a flow comes or goes, or begins or ends to have ready records."""
        self.limit, self.usable = 0, NEVER

    def _divide(self, limit: int) -> None:
        """Divide so many slots among the flows that have ready records.

        Shares are rounded up: rounded down, some slots would stay empty.
        """
        waiting = self.waiting = [ready for ready in self.lanes if ready.turns]
        self.limit, self.total, reserved = limit, NEVER, True
        if self.inner < NEVER:
            limit, reserved = self._served(limit)
            self.total = limit
        self.usable = self.total if waiting else 0
        self.length = max(self.unit, limit // TURNS)  # a request that is not full costs as much as a full one
        self.most, beside = self._reserved(limit, reserved=reserved)
        weights = sum(ready.weight for ready in waiting)
        for ready in waiting:
            ready.share = -(-limit * ready.weight // weights)
            share = -(-(ready.share if ready.share < self.most else self.most) // len(ready.turns))
            for topic in ready.turns:
                topic.share = share
                topic.each = -(-share // len(topic.turns))
                if topic.each > beside and len(topic.flows) > 1:
                    topic.each = beside
        # Contract 8.8: lanes have their parts by their weights, so the one that has had least goes first.
        waiting.sort(key=HAD)

    def _served(self, limit: int) -> tuple[int, bool]:
        """Return how many slots may be taken where the limit follows the service, and whether they hold a reserve."""
        waiting, inner = [topic for ready in self.waiting for topic in ready.turns], min(limit, self.inner)
        shared, _ = self._reserved(inner)
        for ready in self.lanes:
            for topic in ready.topics.values():
                # Contract 8.8: a topic whose requests all hang has taken what it may, and stops no other.
                if topic.out > shared and any(other is not topic for other in waiting):
                    return limit, True
        return inner, len(waiting) > 1

    def next_freely(self, free: int) -> Flow | None:
        """Give the turn to the next flow that has ready records, whatever its share, and return it.

        `free`: slots that are free; `granted` records may go. Most records of a service that keeps up go this way: to
        divide the slots for each would cost more than to send it.
        """
        ready = None
        for other in self.lanes:
            if other.turns and (ready is None or other.had < ready.had):
                ready = other
        if ready is None:
            return None
        topic = ready.turns[0]
        ready.turns.rotate(-1)
        flow = topic.turns[0]
        topic.turns.rotate(-1)
        self.granted = self.unit if self.unit < free else free
        if len(self.lanes) > 1:
            self._took(ready)
        return flow

    def next_by_shares(self, in_flight: int, limit: int, free: int) -> Flow | None:
        """Give the turn to the next flow that may take a slot, and return it; `granted` records may go.

        Return None if no flow may. `limit`: deliveries in flight by the pace; `free`: slots that are free.
        """
        flow, self.freed = self.freed, None
        if self.limit != limit:
            self._divide(limit)
        if in_flight >= self.usable:
            return None
        if self.total < in_flight + free:
            free = self.total - in_flight
        # The rest of the turn: to look for the next flow for each record would cost more than to send it.
        if flow is not None and self.remaining and flow.records:
            topic = flow.topic
            if flow.out < topic.each and topic.out < topic.share:
                self.remaining -= 1
                self.granted = 1
                return flow
        for ready in self.waiting:
            for turn_number, topic in enumerate(ready.turns, 1):
                # Contract 8.8: while others have records, no flow takes a slot above its share.
                shared = topic.out < topic.share and ready.out < ready.share
                below = topic.each if shared else self._may_begin(topic)
                for number, flow in enumerate(topic.turns, 1):
                    if flow.out < below:
                        ready.turns.rotate(-turn_number)
                        topic.turns.rotate(-number)
                        self._begin_turn(flow, free)
                        return flow
        self.usable = in_flight
        return None

    def _begin_turn(self, flow: Flow, free: int) -> None:
        """Grant a flow the records of a turn, or as many of them as may go now."""
        topic, ready = flow.topic, flow.ready
        self.usable, self.granted = self.total, 1  # what another topic gives up may be of use to more than one flow
        if self.length > 1:
            share = min(topic.each - flow.out, topic.share - topic.out, ready.share - ready.out)
            self.granted = min(self.length, free, max(1, share), len(flow.records))
        self.remaining = self.length - self.granted
        if len(self.waiting) > 1:
            self._took(ready)
            self.waiting.remove(ready)
            insort(self.waiting, ready, key=HAD)

    def _may_begin(self, topic: TopicFlows) -> bool:
        """Return whether a flow with nothing in flight may: so few others of its topic, or lane, have a slot."""
        ready = topic.ready
        if topic.out:
            return topic.out < self.most and topic.busy < max(FEWEST, topic.share)
        return sum(other.out > 0 for other in ready.topics.values()) < max(FEWEST, ready.share)

    def _took(self, ready: ReadyFlows) -> None:
        """Note that a lane begins the granted records.

        A lane that could not go in its turn, or had no records, makes up for one turn of this lane and no more: what it
        missed before is nothing that the others owe it.
        """
        cost = self.granted / ready.weight
        ready.had += cost
        least = ready.had - 2 * cost
        for other in self.lanes:
            if other.had < least:
                other.had = least

    def in_turn(self, choose: Callable[[ReadyFlows, T], Flow | None], argument: T) -> Flow | None:
        """Return the flow that is chosen of the next lane that has one, and put the lane behind the others.

        One record of the flow may go.
        """
        self.granted = 1
        for _ in self.lanes:
            ready = self.lanes.pop(0)
            self.lanes.append(ready)
            if (flow := choose(ready, argument)) is not None:
                return flow
        return None

    def probe(self, ready: ReadyFlows, limit: int) -> Flow | None:
        """Return the flow of a lane that was probed least recently; None if none may be. `limit`: of an open pace.

        A probe that hangs has its slot when the outage is over, too. So the reserve holds for probes as well.
        """
        most, beside = self._reserved(limit)
        # Contract 8.2: the bad records of one partition hold up no other. Contract 8.8: none takes the reserve alone.
        flows = (
            flow
            for topic in ready.turns
            if topic.out < most
            for flow in topic.turns
            if flow.out < beside or len(topic.flows) < 2
        )
        return min(flows, key=PROBED, default=None)

    def _reserved(self, limit: int, *, reserved: bool = True) -> tuple[int, int]:
        """Return how many of `limit` slots one topic may take, and one of several partitions of a topic.

        The others are the reserve. NEVER where there is none: all may be taken. `reserved`: whether others need one.
        """
        requests, topics = limit // self.unit, sum(len(ready.topics) for ready in self.lanes)
        most = limit if topics < 2 or requests < 2 or not reserved else limit - max(1, requests // RESERVE) * self.unit
        return most if most < limit else NEVER, most - self.unit if most >= 2 * self.unit else NEVER

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self.limit or all(ready in self.lanes for ready in self.waiting), "each lane that waits takes turns")


class ReadyFlows:
    """The records of one lane that may be delivered.

    Invariants: exactly the flows with ready records have a turn, one each, and so have their topics unless these rest;
    counts of a topic are those of its flows, and the lane's those of its topics; a flow holds records of its own
    partition alone.
    """

    def __init__(self) -> None:
        self.turns: deque[TopicFlows] = deque()
        """The topics that have ready records and do not rest, in the order of their turns."""
        self.topics: dict[str, TopicFlows] = {}
        self.flows: dict[FlowKey, Flow] = {}
        """All flows, by the partition of their records, and by their main topic where that has limits of its own."""
        self.out = self.share = 0
        """Records of this lane in flight, and the slots that it may have (`Turns`)."""
        self.weight, self.had = 1, 0.0
        """The weight of the lane, and the records that it has begun, divided by that (`Turns`)."""
        self.lane: LaneQueue
        """The lane itself, once it has joined a dispatcher."""
        self._all, self._limits = Turns(), DeliveryLimits()

    def __len__(self) -> int:
        return sum(len(flow.records) for flow in self.flows.values())

    def __bool__(self) -> bool:
        """Return whether a record may have a turn."""
        return bool(self.turns)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, those of one flow in the order in which they go."""
        return chain.from_iterable(flow.records for flow in self.flows.values())

    def join(self, lane: LaneQueue, weight: int, turns: Turns, limits: DeliveryLimits) -> None:
        """Become one of the lanes of a dispatcher; `weight` is as the field is documented."""
        self.lane, self.weight, self._all, self._limits = lane, weight, turns, limits
        turns.lanes.append(self)

    # --- records become ready ---------------------------------------------------------------------------------------

    def own(self, source: Partition) -> None:
        """Note that a partition is owned: it is a flow, even before it has records."""
        self._flow(source)
        self._limits.stale = True  # contract 8.9: what this instance owns is its part of the group's rate

    def append(self, record: Record) -> None:
        """Add a record behind all others of its flow."""
        self._waiting(record).records.append(record)

    def extend(self, records: Sequence[Record]) -> None:
        """Add records of one partition behind its others, in their order."""
        if self._limits.topics:
            for record in records:
                self.append(record)
        elif records:
            self._waiting(records[0]).records.extend(records)

    def put_first(self, records: Sequence[Record]) -> None:
        """Add records of one partition before its others, in their order."""
        for record in reversed(records):
            self._waiting(record).records.appendleft(record)

    def put_in_order(self, record: Record) -> None:
        """Add a record before the first one of its flow that has a higher offset."""
        records = self._waiting(record).records
        at = next((number for number, other in enumerate(records) if other.offset > record.offset), len(records))
        records.insert(at, record)

    def _waiting(self, record: Record) -> Flow:
        """Return the flow of a record that becomes ready; one that had none has a turn now, behind all others."""
        flow = self._flow(self._limits.key(record) if self._limits.topics else record.source)
        if not flow.records:
            topic = flow.topic
            if not topic.turns and not topic.rests:
                self.turns.append(topic)
            topic.turns.append(flow)
            self._all.changed()
        return flow

    def _flow(self, key: FlowKey) -> Flow:
        """Return the flow of a key, which is owned from now on; a new one, and its topic, if there is none yet."""
        flow = self.flows.get(key)
        if flow is None:
            source, main = (key, key.topic) if isinstance(key, Partition) else key
            name = source.topic if main == source.topic else f"{source.topic}/{main}"  # no topic's name has a slash
            topic = self.topics.get(name)
            if topic is None:
                topic = self.topics[name] = TopicFlows(name, self, self._limits.topics.get(main))
                if topic.limit is not None:
                    topic.limit.flows.append(topic)
            flow = self.flows[key] = Flow(key, source, topic)
            topic.flows.append(flow)
            self._all.changed()
        flow.owned = True
        return flow

    # --- records go -------------------------------------------------------------------------------------------------

    def first_of(self, sources: Iterable[Partition]) -> Flow | None:
        """Return the first flow of these partitions that may have a turn; None if none may."""
        flows = (flow for source in sources for flow in self._of(source))
        return next((flow for flow in flows if flow.records and not flow.topic.rests), None)

    def end(self, flow: Flow) -> None:
        """Take the turn away from a flow whose last ready record was taken."""
        topic = flow.topic
        topic.turns.remove(flow)
        if not topic.turns and not topic.rests:
            self.turns.remove(topic)
        self._all.changed()

    # --- partitions, and those that go --------------------------------------------------------------------------------

    def has(self, source: Partition) -> bool:
        """Return whether a record of a partition is ready."""
        return any(flow.records for flow in self._of(source))

    def at_rest(self, source: Partition) -> bool:
        """Return whether a partition has ready records, and a limit of their topic keeps each of them waiting."""
        waits = [flow.topic.rests for flow in self._of(source) if flow.records]
        return bool(waits) and all(waits)

    def of(self, source: Partition) -> Iterator[Record]:
        """Yield the ready records of a partition, those of one flow in the order in which they go."""
        return chain.from_iterable(flow.records for flow in self._of(source))

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are released."""
        for flow in [flow for source in partitions for flow in self._of(source)]:
            self._keep(flow, [])
            flow.owned = False
            if not flow.out:
                self.forget(flow)
        self._limits.stale = True

    def take_back(self, source: Partition, from_offset: int = 0) -> list[Record]:
        """Remove and return the records of a partition that can be fetched again; the others keep their order.

        Tries in place and postponements are known to memory alone. `from_offset`: only from this offset on.
        """
        taken: list[Record] = []
        for flow in self._of(source):
            stays: list[Record] = []
            for record in flow.records:
                (stays if record.offset < from_offset or record.memory_only else taken).append(record)
            self._keep(flow, stays)
        return taken

    def pick(self, record: Record) -> None:
        """Remove one record that is ready."""
        for flow in self._of(record.source):
            self._keep(flow, [one for one in flow.records if one != record])

    def _keep(self, flow: Flow, stays: list[Record]) -> None:
        """Remove all ready records of a flow but these."""
        if len(stays) < len(flow.records):
            flow.records.clear()
            flow.records.extend(stays)
            if not stays:
                self.end(flow)

    def rest(self, topic: TopicFlows, *, rests: bool) -> None:
        """Take the turn away from a topic whose limit is reached, or give it another one."""
        topic.rests = rests
        topic.share = topic.each = 0  # a slot that its records free is not theirs either
        if topic.turns:
            (self.turns.remove if rests else self.turns.append)(topic)
        self._all.changed()

    def _of(self, source: Partition) -> list[Flow]:
        """Return the flows of a partition."""
        keys = chain((source,), ((source, name) for name in self._limits.topics))
        return [self.flows[key] for key in keys if key in self.flows]

    def forget(self, flow: Flow) -> None:
        """Forget a flow that is not owned any more, and has nothing in flight."""
        topic = flow.topic
        del self.flows[flow.key]
        topic.flows.remove(flow)
        if not topic.flows:
            del self.topics[topic.name]
            if topic.limit is not None:
                topic.limit.flows.remove(topic)
        self._all.changed()

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, flow in self.flows.items():
            has_turn, of = flow.topic.turns.count(flow), {(one.source, self._limits.key(one)) for one in flow.records}
            ensure_all(
                {
                    f"{key} has one turn if it has ready records, and {has_turn}": has_turn == bool(flow.records),
                    f"the flow of {key} has no other records": of <= {(flow.source, key)},
                    f"{key} is owned, or something of it is in flight": flow.owned or flow.out > 0,
                }
            )
        for name, topic in self.topics.items():
            has_turn = self.turns.count(topic)
            counts = sum(flow.out for flow in topic.flows), sum(flow.out > 0 for flow in topic.flows)
            ensure_all(
                {
                    f"{name} has one turn if it has ready records": has_turn == (bool(topic.turns) and not topic.rests),
                    f"the counts of {name} are those of its flows": (topic.out, topic.busy) == counts,
                    f"each flow of {name} is known": all(self.flows.get(flow.key) is flow for flow in topic.flows),
                }
            )
        ensure_all(
            {
                "the lane has what its topics have": self.out == sum(topic.out for topic in self.topics.values()),
                "each topic with a turn is known": all(self.topics.get(topic.name) is topic for topic in self.turns),
            }
        )
