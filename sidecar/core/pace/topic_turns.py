"""The records of a lane that may be delivered, as flows that take turns.

A flow is one partition; it is known by the partition of its records, so a second source of records beside a main
partition has a flow of its own. Topics take turns, and the partitions of a topic within its turn. A level topic and the
ready topic are topics like any other, so a redrive is a flow beside the levels.

A flow also counts its records that are out, since its share of the places depends on them (`shares.py`). It lives as
long as its partition is owned or something of it is out.

Where a main topic has limits of its own (`topic_limits.py`), its copies are flows of their own in the partitions that
they share with others. While the limit is reached they rest: they have no turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.topic_limits import FlowKey, TopicLimit, TopicLimits
from reconsume.sidecar.core.record import Now, Partition, Record


class TopicFlows:
    """The flows of one topic, or what a main topic with limits of its own has in it."""

    __slots__ = ("busy", "each", "limit", "name", "out", "owned", "ready", "rests", "share", "turns")

    def __init__(self, name: str, ready: ReadyFlows, limit: TopicLimit | None = None) -> None:
        self.name, self.ready, self.limit = name, ready, limit
        self.rests = False
        """Whether its limit is reached, so that it has no turn."""
        self.turns: deque[Flow] = deque()
        """Its flows that have ready records, in the order of their turns."""
        self.owned = 0
        """How many of its partitions are owned, or have a record that is ready or out."""
        self.out = 0
        """Its records that are out."""
        self.busy = 0
        """How many of its flows have records out."""
        self.share = self.each = 0
        """The places that it, and each of its flows, may have (`shares.divide`)."""


class Flow:
    """The ready records of one partition, in the order in which they go."""

    __slots__ = ("key", "out", "owned", "ready", "records", "source", "topic")

    def __init__(self, key: FlowKey, source: Partition, topic: TopicFlows, ready: ReadyFlows) -> None:
        self.key, self.source, self.topic, self.ready = key, source, topic, ready
        self.records: deque[Record] = deque()
        self.out = 0
        """Its records that are out, also those of a former assignment."""
        self.owned = True


class ReadyFlows:
    """The records of one lane that may be delivered.

    Invariants: exactly the flows with ready records have a turn, one each, and so have their topics unless these rest;
    counts of a topic are those of its flows, and the lane's those of its topics; a flow holds records of its own
    partition alone.
    """

    def __init__(self) -> None:
        self.turns: deque[TopicFlows] = deque()
        """The topics that have ready records, in the order of their turns."""
        self.resting: deque[TopicFlows] = deque()
        """The topics that have ready records, and a limit that is reached."""
        self._limits: TopicLimits | None = None
        self.topics: dict[str, TopicFlows] = {}
        self.out = 0
        """Records of this lane that are out."""
        self.share = self.most = 0
        """The places that the lane may have, and those that one topic may have in any case (`shares.divide`)."""
        self.weight, self.had = 1, 0.0
        """The weight of the lane, and the records that it has begun, divided by that (`lane_turns.py`)."""
        self.send: Callable[[Record, Now], bool] = lambda record, now: False
        """The lane's method that delivers a record; it returns False if the record may not be delivered after all."""
        self._ready_changed: Callable[[], None] = lambda: None
        self._topics_changed: Callable[[], None] = lambda: None
        self.flows: dict[FlowKey, Flow] = {}
        """All flows, by the partition of their records, and by their main topic where that has limits of its own."""

    def __len__(self) -> int:
        return sum(len(flow.records) for topic in chain(self.turns, self.resting) for flow in topic.turns)

    def __bool__(self) -> bool:
        """Return whether a record may have a turn."""
        return bool(self.turns)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, those of one flow in the order in which they go."""
        topics = chain(self.turns, self.resting)
        return chain.from_iterable(flow.records for topic in topics for flow in topic.turns)

    def join(
        self,
        send: Callable[[Record, Now], bool],
        weight: int,
        ready_changed: Callable[[], None],
        topics_changed: Callable[[], None],
        limits: TopicLimits | None = None,
    ) -> None:
        """Become one of the lanes of a dispatcher.

        `ready_changed` is called when a flow begins or ends to have ready records, `topics_changed` when one comes or
        goes: the shares change. `limits`: of the main topics that have some.
        """
        self.send, self.weight, self._limits = send, weight, limits
        self._ready_changed, self._topics_changed = ready_changed, topics_changed

    # --- records become ready ---------------------------------------------------------------------------------------

    def own(self, source: Partition) -> None:
        """Note that a partition is owned: it is a flow, even before it has records."""
        self._flow(source)
        self._topics_changed()

    def append(self, record: Record) -> None:
        """Add a record behind all others of its flow."""
        flow = self._flow(self._key(record))
        if not flow.records:
            self._begin(flow)
        flow.records.append(record)

    def extend(self, records: Sequence[Record]) -> None:
        """Add records of one partition behind its others, in their order."""
        if self._limits is not None:
            for record in records:
                self.append(record)
        elif records:
            flow = self._flow(records[0].source)
            if not flow.records:
                self._begin(flow)
            flow.records.extend(records)

    def put_first(self, records: Sequence[Record]) -> None:
        """Add records of one partition before its others, in their order; a flow that had none has the next turn."""
        for record in reversed(records):
            flow = self._flow(self._key(record))
            if not flow.records:
                self._begin(flow)
                flow.topic.turns.rotate()
                turns = self._turns_of(flow.topic)
                turns.remove(flow.topic)
                turns.appendleft(flow.topic)
            flow.records.appendleft(record)

    # --- records go -------------------------------------------------------------------------------------------------

    def take(self) -> tuple[Flow, Record] | None:
        """Remove and return the record whose turn it is, whatever is out, with its flow; None if none is ready."""
        if not self.turns:
            return None
        flow = self.next()
        return flow, self.take_from(flow)

    def next(self) -> Flow:
        """Give the turn to the next flow, whatever is out, and return it; one must have records."""
        topic = self.turns[0]
        self.turns.rotate(-1)
        flow = topic.turns[0]
        topic.turns.rotate(-1)
        return flow

    def take_of(self, sources: Collection[Partition]) -> tuple[Flow, Record] | None:
        """Remove and return the first record of the first of these partitions that has one; None if none has."""
        for source in sources:
            for flow in self._of(source):
                if flow.records and not flow.topic.rests:
                    return flow, self.take_from(flow)
        return None

    def take_from(self, flow: Flow) -> Record:
        """Remove and return the first record of a flow that has one."""
        record = flow.records.popleft()
        if not flow.records:
            self.end(flow)
        return record

    def end(self, flow: Flow) -> None:
        """Take the turn away from a flow whose last ready record was taken."""
        flow.topic.turns.remove(flow)
        if not flow.topic.turns:
            self._turns_of(flow.topic).remove(flow.topic)
        self._ready_changed()

    def sent(self, flow: Flow, count: int = 1) -> None:
        """Note that records of a flow are out."""
        topic = flow.topic
        if not flow.out:
            topic.busy += 1
        flow.out += count
        topic.out += count
        self.out += count
        if topic.limit is not None:
            topic.limit.sent(count)

    def ended(self, flow: Flow, count: int = 1) -> None:
        """Note that records of a flow, which are out, are out no more."""
        topic = flow.topic
        topic.out -= count
        self.out -= count
        flow.out -= count
        if topic.limit is not None:
            topic.limit.ended(count)
        if not flow.out:
            topic.busy -= 1
            if not flow.records:
                self._ready_changed()
                if not flow.owned:
                    self._forget(flow)

    # --- probes, partitions that go ---------------------------------------------------------------------------------

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

    def deal(self, rank: Callable[[Flow], tuple[bool, int]]) -> None:
        """Give the next turn to the flows for which `rank` is least. For probes alone, of which there are a few."""
        for topic in self.turns:
            topic.turns = deque(sorted(topic.turns, key=rank))
        self.turns = deque(sorted(self.turns, key=lambda topic: rank(topic.turns[0])))

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are given up."""
        for flow in [flow for source in partitions for flow in self._of(source)]:
            if flow.records:
                flow.records.clear()
                self.end(flow)
            flow.owned = False
            if not flow.out:
                self._forget(flow)
        self._topics_changed()

    def take_back(self, source: Partition, from_offset: int = 0) -> list[Record]:
        """Remove and return the records of a partition that can be fetched again; the others keep their order.

        Tries in place and postponements are known to memory alone. `from_offset`: only from this offset on.
        """
        return [record for flow in self._of(source) for record in self._take_back(flow, from_offset)]

    def _take_back(self, flow: Flow, from_offset: int) -> list[Record]:
        taken = [record for record in flow.records if record.offset >= from_offset and not record.memory_only]
        if taken:
            stays = [record for record in flow.records if record.offset < from_offset or record.memory_only]
            flow.records.clear()
            flow.records.extend(stays)
            if not flow.records:
                self.end(flow)
        return taken

    def pick(self, record: Record) -> None:
        """Remove one record that is ready."""
        for flow in self._of(record.source):
            if record in flow.records:
                flow.records.remove(record)
                if not flow.records:
                    self.end(flow)

    def rest(self, topic: TopicFlows, *, rests: bool) -> None:
        """Take the turn away from a topic whose limit is reached, or give it another one."""
        topic.rests = rests
        topic.share = topic.each = 0  # a place that its records free is not theirs either
        if topic.turns:
            come, go = (self.resting, self.turns) if rests else (self.turns, self.resting)
            go.remove(topic)
            come.append(topic)
        self._ready_changed()

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, flow in self.flows.items():
            turns = flow.topic.turns.count(flow)
            ensure(turns == bool(flow.records), f"{key} has one turn if it has ready records, and {turns}")
            own = all(record.source == flow.source and self._key(record) == key for record in flow.records)
            ensure(own, f"the flow of {key} has no other records")
            ensure(flow.owned or flow.out > 0, f"{key} is owned, or something of it is out")
        for name, topic in self.topics.items():
            flows = [flow for flow in self.flows.values() if flow.topic is topic]
            has, other = (self.resting, self.turns) if topic.rests else (self.turns, self.resting)
            ensure(has.count(topic) == bool(topic.turns), f"{name} has one turn if it has ready records")
            ensure(topic not in other, f"{name} has a turn, or rests")
            counts = (len(flows), sum(flow.out for flow in flows), sum(flow.out > 0 for flow in flows))
            ensure((topic.owned, topic.out, topic.busy) == counts, f"the counts of {name} are those of its flows")
        outs = [topic.out for topic in self.topics.values()]
        ensure(self.out == sum(outs), "the lane has out what its topics have")
        known = [self.topics.get(topic.name) is topic for topic in (*self.turns, *self.resting)]
        ensure(all(known), "each topic with a turn is known")

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _of(self, source: Partition) -> list[Flow]:
        """Return the flows of a partition."""
        keys = (source,) if self._limits is None else self._limits.keys(source)
        return [self.flows[key] for key in keys if key in self.flows]

    def _flow(self, key: FlowKey) -> Flow:
        flow = self.flows.get(key)
        if flow is None:
            flow = self._begin_flow(key)
        flow.owned = True
        return flow

    def _begin_flow(self, key: FlowKey) -> Flow:
        """Return a new flow, of a new topic if that has none yet."""
        source, main = (key, key.topic) if isinstance(key, Partition) else key
        name = source.topic if main == source.topic else f"{source.topic}/{main}"  # no topic's name has a slash
        topic = self.topics.get(name)
        if topic is None:
            limit = None if self._limits is None else self._limits.of(main)
            topic = self.topics[name] = TopicFlows(name, self, limit)
            if limit is not None:
                limit.join(topic)
        topic.owned += 1
        flow = self.flows[key] = Flow(key, source, topic, self)
        self._topics_changed()
        return flow

    def _forget(self, flow: Flow) -> None:
        del self.flows[flow.key]
        topic = flow.topic
        topic.owned -= 1
        if not topic.owned:
            del self.topics[topic.name]
            if topic.limit is not None:
                topic.limit.flows.remove(topic)
        self._topics_changed()

    def _key(self, record: Record) -> FlowKey:
        return record.source if self._limits is None else self._limits.key(record)

    def _turns_of(self, topic: TopicFlows) -> deque[TopicFlows]:
        return self.resting if topic.rests else self.turns

    def _begin(self, flow: Flow) -> None:
        """Give a turn to a flow that has ready records now, behind all others."""
        if not flow.topic.turns:
            self._turns_of(flow.topic).append(flow.topic)
        flow.topic.turns.append(flow)
        self._ready_changed()
