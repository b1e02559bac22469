"""What a main topic may have by its own settings: places in flight, and a rate.

A topic whose limit is reached rests: its flows have no turn, so nothing of it is looked at, and others share the
places. Retries and redrives count by the topic that they were first in, so such a topic has flows of its own wherever
its copies lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.bucket import Bucket
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.topics.rates import Rate

if TYPE_CHECKING:
    from reconsume.sidecar.core.pace.topic_turns import TopicFlows

FlowKey: TypeAlias = Partition | tuple[Partition, str]
"""A flow: one partition, or the records in it that a main topic with limits of its own was first to have."""


class TopicTerms(msgspec.Struct, frozen=True):
    """The limits of one main topic: records in flight, and a rate; None: none of its own."""

    concurrency: int | None = None
    rate: Rate | None = None


class TopicLimit:
    """The limits of one main topic, and what of it is out, over all lanes.

    Invariants: all its flows rest, or none; what is offered is out.
    """

    def __init__(self, name: str, terms: TopicTerms, owner: TopicLimits) -> None:
        self.name, self.terms = name, terms
        self.out = 0
        self.most = NEVER if terms.concurrency is None else terms.concurrency
        self.bucket = None if terms.rate is None else Bucket(terms.rate, owner.now)
        self.reached = False
        self.flows: list[TopicFlows] = []
        """Its flows, by the topic that they are read from."""
        self._owner = owner
        self._offered = 0
        """Records that are offered and not received yet (pull): a token is kept for each."""

    def room(self) -> int:
        """Return how many of its records may go."""
        free = self.most - self.out
        return free if self.bucket is None else min(free, self.bucket.tokens(self._owner.now) - self._offered)

    def sent(self, records: int) -> None:
        """Note that records are out; its flows rest if no more may go."""
        self.out += records
        if self._owner.at_receive:
            self._offered += records
        elif self.bucket is not None:
            self.bucket.tokens(self._owner.now)  # a topic that was not looked at for long gains no more than its burst
            self.bucket.take(records)
        if self.room() < 1:
            self.rest(reached=True)

    def received(self, now_ms: int) -> None:
        """Note that an offered record is received, at a steady time (ms)."""
        self._offered -= 1
        if self.bucket is not None:
            self.bucket.tokens(now_ms)
            self.bucket.take(1)

    def withdrawn(self) -> None:
        """Note that an offered record is offered no more."""
        self._offered -= 1

    def ended(self, records: int) -> None:
        """Note that records are out no more. Flows that rest have turns again at the next `TopicLimits.look`."""
        self.out -= records

    def join(self, flows: TopicFlows) -> None:
        """Let flows be bound by this limit."""
        self.flows.append(flows)
        flows.rests = self.reached

    @property
    def binds(self) -> str:
        """Which of its settings keeps records waiting: `concurrency` or `rate`; empty if none does."""
        if not self.reached or not any(flows.turns for flows in self.flows):
            return ""
        return "concurrency" if self.out >= self.most else "rate"

    def next_at(self) -> int:
        """Return the steady time (ms) at which to look again; NEVER if no record waits, or if only an answer helps."""
        if self.bucket is None or self.binds != "rate":
            return NEVER
        return self.bucket.next_at(self._offered, self._owner.now)

    def rest(self, *, reached: bool) -> None:
        """Let its flows rest, or have turns again."""
        if reached is self.reached:
            return
        self.reached = reached
        (self._owner.reached.add if reached else self._owner.reached.discard)(self)
        for topic_flows in self.flows:
            topic_flows.ready.rest(topic_flows, rests=reached)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(0 <= self._offered <= self.out, f"{self._offered} of the {self.out} out of {self.name} are offered")
        ensure(all(flows.rests is self.reached for flows in self.flows), f"all flows of {self.name} rest, or none")
        if self.bucket is not None:
            self.bucket.check()


class TopicLimits:
    """The limits of those main topics that have some. `at_receive`: as in `InstanceRate`.

    Invariant: those that are reached are noted.
    """

    def __init__(self, terms: Mapping[str, TopicTerms], now_ms: int, *, at_receive: bool = False) -> None:
        self.now, self.at_receive = now_ms, at_receive
        """The steady time (ms) of the last look."""
        self.reached: set[TopicLimit] = set()
        self._limits = {name: TopicLimit(name, one, self) for name, one in terms.items()}
        for limit in self._limits.values():  # a bucket is empty at the start
            limit.rest(reached=limit.room() < 1)

    def all(self) -> Iterable[TopicLimit]:
        """Return every limit."""
        return self._limits.values()

    def of(self, topic: str) -> TopicLimit | None:
        """Return the limit of a main topic; None if it has none."""
        return self._limits.get(topic)

    def of_record(self, record: Record) -> TopicLimit | None:
        """Return the limit that a record is bound by; None if there is none."""
        return self._limits.get(record.main_topic)

    def key(self, record: Record) -> FlowKey:
        """Return the flow of a record."""
        source, main = record.source, record.main_topic
        return source if main == source.topic or main not in self._limits else (source, main)

    def keys(self, source: Partition) -> Iterable[FlowKey]:
        """Yield the keys that flows of a partition may have."""
        yield source
        for name in self._limits:
            yield source, name

    def look(self, now_ms: int) -> None:
        """Let the flows of each topic have turns again whose limit is reached no more."""
        self.now = now_ms
        for limit in tuple(self.reached):
            if limit.room() > 0:
                limit.rest(reached=False)

    def next_at(self) -> int:
        """Return the steady time (ms) at which to look again."""
        return min((limit.next_at() for limit in self.reached), default=NEVER)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        reached = {limit for limit in self._limits.values() if limit.reached}
        ensure(self.reached == reached, "the limits that are reached are noted")
        for limit in self._limits.values():
            limit.check()
