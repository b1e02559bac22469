"""The ready records of a lane as flows, one for each partition that they were read from.

For now they are served first in, first out over all flows: `_turns` names a flow once for each of its records. Another
order of the flows is another order of `_turns`, and nothing else. A flow is known by the partition of its records, so a
second source of records beside a main partition has a flow of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat

from sidecar.core.invariant import ensure
from sidecar.core.record import Partition, Record


class Flow:
    """The ready records of one partition, in the order in which they go."""

    __slots__ = ("records", "source")

    def __init__(self, source: Partition) -> None:
        self.source = source
        self.records: deque[Record] = deque()


class ReadyFlows:
    """The records of one lane that may be delivered.

    Invariants: each flow stands in `_turns` as often as it has records, and holds records of its own partition alone.
    """

    def __init__(self) -> None:
        self._flows: dict[Partition, Flow] = {}
        self._turns: deque[Flow] = deque()

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in the order in which they go."""
        records = {flow: iter(flow.records) for flow in self._flows.values()}
        return (next(records[flow]) for flow in self._turns)

    def append(self, record: Record) -> None:
        """Add a record behind all others."""
        flow = self._flow(record.source)
        flow.records.append(record)
        self._turns.append(flow)

    def extend(self, records: Sequence[Record]) -> None:
        """Add records of one partition behind all others, in their order."""
        if records:
            flow = self._flow(records[0].source)
            flow.records.extend(records)
            self._turns.extend(repeat(flow, len(records)))

    def put_first(self, records: Sequence[Record]) -> None:
        """Add records of one partition before all others, in their order."""
        if records:
            flow = self._flow(records[0].source)
            flow.records.extendleft(reversed(records))
            self._turns.extendleft(repeat(flow, len(records)))

    def take(self) -> Record | None:
        """Remove and return the record whose turn it is; None if none is ready."""
        return self._turns.popleft().records.popleft() if self._turns else None

    def take_of(self, sources: Collection[Partition]) -> Record | None:
        """Remove and return the first record of the first of these partitions that has one; None if none has."""
        for source in sources:
            flow = self._flows.get(source)
            if flow is not None and flow.records:
                self._turns.remove(flow)
                return flow.records.popleft()
        return None

    def has(self, source: Partition) -> bool:
        """Return whether a record of a partition is ready."""
        flow = self._flows.get(source)
        return flow is not None and bool(flow.records)

    def deal(self, last: Callable[[Partition], int]) -> None:
        """Let the flows take turns, one record each; first those for which `last` is least.

        It reads every turn, so it is for probes alone, of which there are a few in a second.
        """
        remaining = Counter(self._turns)
        line = deque(sorted(remaining, key=lambda flow: last(flow.source)))
        self._turns.clear()
        while line:
            flow = line.popleft()
            self._turns.append(flow)
            remaining[flow] -= 1
            if remaining[flow]:
                line.append(flow)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are given up."""
        gone = {self._flows.pop(source) for source in partitions if source in self._flows}
        if any(flow.records for flow in gone):
            self._turns = deque(flow for flow in self._turns if flow not in gone)

    def take_back(self, source: Partition) -> list[Record]:
        """Remove and return the records of a partition that were not tried in place; the others keep their turns."""
        flow = self._flows.get(source)
        if flow is None:
            return []
        records, taken = flow.records, [record for record in flow.records if not record.again]
        if taken:
            flow.records = deque(record for record in records if record.again)
            each = iter(records)
            self._turns = deque(turn for turn in self._turns if turn is not flow or next(each).again)
        return taken

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        turns = Counter(self._turns)
        for source, flow in self._flows.items():
            ensure(turns.pop(flow, 0) == len(flow.records), f"{source} has a turn for each of its ready records")
            ensure({record.source for record in flow.records} <= {source}, f"the flow of {source} has no other records")
        ensure(not turns, "each flow that has a turn is known")

    def _flow(self, source: Partition) -> Flow:
        flow = self._flows.get(source)
        if flow is None:
            flow = self._flows[source] = Flow(source)
        return flow
