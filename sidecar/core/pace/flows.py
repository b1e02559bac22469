"""The records of a lane that may be delivered, as flows that take turns.

A flow is one partition; it is known by the partition of its records, so a second source of records beside a main
partition has a flow of its own. Topics take turns, and the partitions of a topic within its turn. A level topic and the
ready topic are topics like any other, so a redrive is a flow beside the levels.

A flow also counts its records that are out, since its share of the places depends on them (`shares.py`). It lives as
long as its partition is owned or something of it is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain

from sidecar.core.invariant import ensure
from sidecar.core.record import Now, Partition, Record


class TopicFlows:
    """The flows of one topic."""

    __slots__ = ("busy", "each", "name", "out", "owned", "share", "turns")

    def __init__(self, name: str) -> None:
        self.name = name
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

    __slots__ = ("out", "owned", "ready", "records", "source", "topic")

    def __init__(self, source: Partition, topic: TopicFlows, ready: ReadyFlows) -> None:
        self.source, self.topic, self.ready = source, topic, ready
        self.records: deque[Record] = deque()
        self.out = 0
        """Its records that are out, also those of a former assignment."""
        self.owned = True


class ReadyFlows:
    """The records of one lane that may be delivered.

    Invariants: exactly the flows with ready records have a turn, one each, and so have their topics; counts of a topic
    are those of its flows, and the lane's those of its topics; a flow holds records of its own partition alone.
    """

    def __init__(self) -> None:
        self.turns: deque[TopicFlows] = deque()
        """The topics that have ready records, in the order of their turns."""
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
        self.flows: dict[Partition, Flow] = {}
        """All flows, by the partition of their records."""

    def __len__(self) -> int:
        return sum(len(flow.records) for topic in self.turns for flow in topic.turns)

    def __bool__(self) -> bool:
        return bool(self.turns)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, those of one partition in the order in which they go."""
        return chain.from_iterable(flow.records for topic in self.turns for flow in topic.turns)

    def join(
        self,
        send: Callable[[Record, Now], bool],
        weight: int,
        ready_changed: Callable[[], None],
        topics_changed: Callable[[], None],
    ) -> None:
        """Become one of the lanes of a dispatcher.

        `ready_changed` is called when a flow begins or ends to have ready records, `topics_changed` when one comes or
        goes: the shares change.
        """
        self.send, self.weight = send, weight
        self._ready_changed, self._topics_changed = ready_changed, topics_changed

    # --- records become ready ---------------------------------------------------------------------------------------

    def own(self, source: Partition) -> None:
        """Note that a partition is owned: it is a flow, even before it has records."""
        self._flow(source)

    def append(self, record: Record) -> None:
        """Add a record behind all others of its partition."""
        flow = self._flow(record.source)
        if not flow.records:
            self._begin(flow)
        flow.records.append(record)

    def extend(self, records: Sequence[Record]) -> None:
        """Add records of one partition behind its others, in their order."""
        if records:
            flow = self._flow(records[0].source)
            if not flow.records:
                self._begin(flow)
            flow.records.extend(records)

    def put_first(self, records: Sequence[Record]) -> None:
        """Add records of one partition before its others, in their order; a flow that had none has the next turn."""
        if records:
            flow = self._flow(records[0].source)
            if not flow.records:
                self._begin(flow)
                flow.topic.turns.rotate()
                self.turns.remove(flow.topic)
                self.turns.appendleft(flow.topic)
            flow.records.extendleft(reversed(records))

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
            flow = self.flows.get(source)
            if flow is not None and flow.records:
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
            self.turns.remove(flow.topic)
        self._ready_changed()

    def sent(self, flow: Flow, count: int = 1) -> None:
        """Note that records of a flow are out."""
        topic = flow.topic
        if not flow.out:
            topic.busy += 1
        flow.out += count
        topic.out += count
        self.out += count

    def ended(self, flow: Flow, count: int = 1) -> None:
        """Note that records of a flow, which are out, are out no more."""
        topic = flow.topic
        topic.out -= count
        self.out -= count
        flow.out -= count
        if not flow.out:
            topic.busy -= 1
            if not flow.records:
                self._ready_changed()
                if not flow.owned:
                    self._forget(flow)

    # --- probes, partitions that go ---------------------------------------------------------------------------------

    def has(self, source: Partition) -> bool:
        """Return whether a record of a partition is ready."""
        flow = self.flows.get(source)
        return flow is not None and bool(flow.records)

    def deal(self, last: Callable[[Partition], int]) -> None:
        """Give the next turn to the flows for which `last` is least. For probes alone, of which there are a few."""
        for topic in self.turns:
            topic.turns = deque(sorted(topic.turns, key=lambda flow: last(flow.source)))
        self.turns = deque(sorted(self.turns, key=lambda topic: last(topic.turns[0].source)))

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are given up."""
        for source in partitions:
            flow = self.flows.get(source)
            if flow is None:
                continue
            if flow.records:
                flow.records.clear()
                self.end(flow)
            flow.owned = False
            if not flow.out:
                self._forget(flow)

    def take_back(self, source: Partition) -> list[Record]:
        """Remove and return the records of a partition that can be fetched again; the others keep their order.

        Tries in place and postponements are known to memory alone.
        """
        flow = self.flows.get(source)
        if flow is None:
            return []
        taken = [record for record in flow.records if not record.memory_only]
        if taken:
            stays = [record for record in flow.records if record.memory_only]
            flow.records.clear()
            flow.records.extend(stays)
            if not flow.records:
                self.end(flow)
        return taken

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, flow in self.flows.items():
            turns = flow.topic.turns.count(flow)
            ensure(turns == bool(flow.records), f"{source} has one turn if it has ready records, and {turns}")
            ensure({record.source for record in flow.records} <= {source}, f"the flow of {source} has no other records")
            ensure(flow.owned or flow.out > 0, f"{source} is owned, or something of it is out")
        for name, topic in self.topics.items():
            flows = [flow for flow in self.flows.values() if flow.topic is topic]
            ensure(self.turns.count(topic) == bool(topic.turns), f"{name} has one turn if it has ready records")
            counts = (len(flows), sum(flow.out for flow in flows), sum(flow.out > 0 for flow in flows))
            ensure((topic.owned, topic.out, topic.busy) == counts, f"the counts of {name} are those of its flows")
        outs = [topic.out for topic in self.topics.values()]
        ensure(self.out == sum(outs), "the lane has out what its topics have")
        ensure(all(self.topics.get(topic.name) is topic for topic in self.turns), "each topic with a turn is known")

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _flow(self, source: Partition) -> Flow:
        flow = self.flows.get(source)
        if flow is None:
            topic = self.topics.get(source.topic)
            if topic is None:
                topic = self.topics[source.topic] = TopicFlows(source.topic)
            topic.owned += 1
            flow = self.flows[source] = Flow(source, topic, self)
            self._topics_changed()
        flow.owned = True
        return flow

    def _forget(self, flow: Flow) -> None:
        del self.flows[flow.source]
        flow.topic.owned -= 1
        if not flow.topic.owned:
            del self.topics[flow.topic.name]
        self._topics_changed()

    def _begin(self, flow: Flow) -> None:
        """Give a turn to a flow that has ready records now, behind all others."""
        if not flow.topic.turns:
            self.turns.append(flow.topic)
        flow.topic.turns.append(flow)
        self._ready_changed()
