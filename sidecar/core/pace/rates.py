"""Rates and limits in addition to the pace: of the instance, of the group, and of main topics that have their own.

A rate is a store of tokens: each token lets one record go. All is counted in whole numbers, so a rate is kept exactly,
however long it runs and however rarely it is looked at. A record that waits for a rate stays ready.

The instance has its own rate (`deliver.rate`) and its part of the group's (`deliver.group_rate`); the smaller one
binds. The group's is divided by the partitions of the main topics, so the parts together are the rate of the group,
whoever owns what; no instance asks another one.

A main topic may have slots in flight and a rate of its own. While such a limit is reached, the flows of the topic rest:
they have no turn, so nothing of it is looked at, and others share the slots. Retries and redrives count by the topic
that they were first in, so such a topic has flows of its own wherever its copies are stored (`FlowKey`).

In pull mode a record takes its token when it is received, and not when it is offered; a token is kept for each offered
record until then. The dispatcher calls `room` before it sends and notes what it sent; the pull queue notes what was
received or withdrawn. All is pure and used on the event loop; times are steady milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.rates import Rate

if TYPE_CHECKING:
    from reconsume.sidecar.core.pace.topic_turns import TopicFlows

BURST_MS = 1_000
"""ms whose tokens a bucket holds at most: what was not used before that is gone. With more, a service that was idle
would get a burst that it never agreed to; with less, a pause of the sidecar would lose records of the rate."""
GRAIN_MS = 10
"""ms between two wake-ups for tokens at least: with one for each token of 1 000/s, waking would cost more than sending.
Records of higher rates go some at a time."""
RESERVED_MS = 250
"""ms between two looks while all tokens are kept for records that nobody has received yet (pull): no time at which one
more is free can be known."""
FlowKey: TypeAlias = Partition | tuple[Partition, str]
"""A flow: one partition, or the records in it that a main topic with limits of its own was first to have."""


class TopicTerms(msgspec.Struct, frozen=True):
    """The limits of one main topic: records in flight, and a rate; None: none of its own."""

    concurrency: int | None = None
    rate: Rate | None = None


class Limit:
    """The tokens of one rate, and the slots of one topic; None: no bound. `name`: of the topic, None for the instance.

    It has no tokens at the start: restarts must not give the service bursts. `at_receive`: as of `DeliveryLimits`.
    Invariants: it holds no more tokens than its burst; all flows of its topic rest, or none.
    """

    def __init__(self, name: str | None, terms: TopicTerms, now_ms: int, *, at_receive: bool) -> None:
        self.name, self.concurrency, self._at_receive = name, terms.concurrency, at_receive
        self.rate: Rate | None = None
        self._burst = self._level = 0
        """Tokens at most, those of a second and at least one; and parts of tokens: `rate.per_ms` of them are one, and
        each millisecond adds `rate.count`."""
        self._at_ms = now_ms
        """The time of the last look."""
        self._offered = 0
        """Records that are offered and not received yet (pull): a token is kept for each."""
        self.out = 0
        """Its records in flight, over all lanes."""
        self.flows: list[TopicFlows] = []
        """Its flows, by the topic that they are read from."""
        self.change(terms.rate, now_ms)
        self.reached = self.room(now_ms) < 1
        """Whether its flows rest, because no more of its records may go."""

    def room(self, now_ms: int) -> int:
        """Return how many records may go, or be offered, at a steady time (ms); less than 1 if none may."""
        slots = NEVER if self.concurrency is None else self.concurrency - self.out
        rate = self.rate
        if rate is None:
            return slots
        if now_ms > self._at_ms:
            added = (now_ms - self._at_ms) * rate.count
            # With the beginning of one token more, it is exact however late it is looked at within the burst.
            self._level = min(self._level + added, (self._burst + 1) * rate.per_ms - 1)
            self._at_ms = now_ms
        return min(slots, self._level // rate.per_ms - self._offered)

    def sent(self, records: int, now_ms: int) -> None:
        """Note that records are sent, or offered (pull); the flows rest if no more may go."""
        self.out += records
        self._offered += records
        # Contract 8.9: in pull mode a record counts when it is received, and not when it becomes ready.
        if not self._at_receive:
            self.received(records, now_ms)
        if self.flows and self.room(now_ms) < 1:
            self.rest(reached=True)

    def received(self, records: int, now_ms: int) -> None:
        """Note that offered records are received. After a change of the rate they may be more than the tokens."""
        self.room(now_ms)  # a limit that was not looked at for long gains no more than its burst
        self._offered -= records
        self._level -= records * (0 if self.rate is None else self.rate.per_ms)

    def withdrawn(self) -> None:
        """Note that an offered record is offered no more (pull)."""
        self._offered -= 1

    def next_at(self, now_ms: int) -> int:
        """Return the steady time (ms) at which to look for one more token; NEVER without a rate."""
        if self.rate is None:
            return NEVER
        if self._offered >= self._burst:
            return now_ms + RESERVED_MS
        missing = (self._offered + 1) * self.rate.per_ms - self._level
        return max(self._at_ms - (-missing // self.rate.count), now_ms + GRAIN_MS)

    def change(self, rate: Rate | None, now_ms: int) -> None:
        """Let another rate hold from now on. The tokens that there are stay, up to the burst of the new one."""
        if rate == self.rate:
            return
        tokens = 0 if self.rate is None else self.room(now_ms) + self._offered
        self.rate, self._at_ms, self._level = rate, now_ms, 0
        if rate is not None:
            self._burst = max(1, rate.count * BURST_MS // rate.per_ms)
            self._level = min(tokens, self._burst) * rate.per_ms

    def rest(self, *, reached: bool) -> None:
        """Let the flows of its topic rest, or have turns again."""
        self.reached = reached
        for topic in self.flows:
            topic.ready.rest(topic, rests=reached)

    @property
    def binds(self) -> str:
        """Which of a topic's settings keeps records waiting: `concurrency` or `rate`; empty if neither does."""
        if not self.reached or not any(topic.turns for topic in self.flows):
            return ""
        return "rate" if self.concurrency is None or self.out < self.concurrency else "concurrency"

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        if self.rate is not None:
            ensure(self._level < (self._burst + 1) * self.rate.per_ms, "no more tokens are saved than a burst")
        ensure(all(topic.rests is self.reached for topic in self.flows), f"all flows of {self.name} rest, or none")


class Owned(NamedTuple):
    """How many partitions of the main topics an instance owns, of how many."""

    owned: int
    of: int


def share_of(rate: Rate, share: Owned) -> Rate:
    """Return an instance's part of the group's rate.

    Without a main partition it has that of one: it may own level partitions, and retries must not wait forever. The
    parts are then more than the group's rate, by as much.
    """
    # Contract 8.9: in proportion to the main partitions that it owns.
    return Rate(rate.count * max(1, share.owned), rate.per_ms * max(share.of, share.owned, 1))


class LimitFacts(NamedTuple):
    """One limit that is in force. `most`: records a second, or records in flight. `waits`: whether records wait for it.

    `limit`: `rate`, `group_rate` or `concurrency`. `topic`: None for a limit of all.
    """

    limit: str
    topic: str | None
    most: float
    waits: bool


class DeliveryLimits:
    """The rate of the instance, and the limits of its topics. Without any, no record pays for them.

    `at_receive`: a record goes when it is received, and not when it is offered (pull). `since_ms`: the start.
    Invariant: a setting binds exactly where there is a rate.
    """

    def __init__(
        self,
        rate: Rate | None = None,
        group_rate: Rate | None = None,
        terms: Mapping[str, TopicTerms] | None = None,
        since_ms: int = 0,
        *,
        at_receive: bool = False,
    ) -> None:
        self.topics = {name: Limit(name, one, since_ms, at_receive=at_receive) for name, one in (terms or {}).items()}
        """The limits of those main topics that have some."""
        self.instance = Limit(None, TopicTerms(), since_ms, at_receive=at_receive)
        """Of the rate that binds the instance."""
        self.owned: Callable[[], Owned] = lambda: Owned(1, 1)
        """Returns the share of the main topics that the instance owns."""
        self.stale = False
        """Whether the instance may own other partitions since the last look."""
        self._at_receive = at_receive
        self.set_rates(rate, group_rate, Now(0, since_ms))

    def set_rates(self, rate: Rate | None, group_rate: Rate | None, now: Now) -> None:
        """Let other rates of the instance and the group hold from now on."""
        self._own, self._group = rate, group_rate
        self.active = self._at_receive or bool(self.topics) or not (rate is None and group_rate is None)
        """Whether there is anything to ask before a record goes."""
        self._bind(now.steady_ms)

    @property
    def of_group(self) -> bool:
        """Whether the group has a rate."""
        return self._group is not None

    def room(self, now: Now) -> int:
        """Let topics go on whose limit is reached no more; return how many records may go now."""
        for limit in self.topics.values():
            if limit.reached and limit.room(now.steady_ms) > 0:
                limit.rest(reached=False)
        if self.stale:
            self._bind(now.steady_ms)
        return self.instance.room(now.steady_ms)

    def _bind(self, now_ms: int) -> None:
        """Let the smaller of the rates hold."""
        self.stale = False
        rates = [("rate", self._own)] if self._own is not None else []
        if self._group is not None:
            rates.append(("group_rate", share_of(self._group, self.owned())))
        self.setting, rate = min(rates, key=lambda one: one[1].per_second, default=("", None))
        """The setting that binds, `rate` or `group_rate`; empty without a rate."""
        self.instance.change(rate, now_ms)

    def key(self, record: Record) -> FlowKey:
        """Return the flow of a record."""
        source, main = record.source, record.main_topic
        return source if main == source.topic or main not in self.topics else (source, main)

    def next_at(self, now: Now, *, full: bool) -> int:
        """Return the steady time (ms) at which more may go, where no answer is needed for that.

        `full`: records wait for the rate of the instance.
        """
        limits = [limit for limit in self.topics.values() if limit.binds == "rate"]
        if full:
            limits.append(self.instance)
        return min((limit.next_at(now.steady_ms) for limit in limits), default=NEVER)

    def received(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service has received records that were offered (pull)."""
        self.instance.received(len(records), now.steady_ms)
        for record in records if self.topics else ():
            if (limit := self.topics.get(record.main_topic)) is not None:
                limit.received(1, now.steady_ms)

    def withdrawn(self, records: Iterable[Record]) -> None:
        """Note that records are offered no more, which nobody has received (pull)."""
        for record in records:
            self.instance.withdrawn()
            if (limit := self.topics.get(record.main_topic)) is not None:
                limit.withdrawn()

    def facts(self, *, full: bool) -> list[LimitFacts]:
        """Return each limit in force: of the two rates of the instance the one that binds. `full`: as in `next_at`."""
        rate = self.instance.rate
        facts = [] if rate is None else [LimitFacts(self.setting, None, rate.per_second, full)]
        for name, limit in self.topics.items():
            if limit.rate is not None:
                facts.append(LimitFacts("rate", name, limit.rate.per_second, limit.binds == "rate"))
            if limit.concurrency is not None:
                facts.append(LimitFacts("concurrency", name, limit.concurrency, limit.binds == "concurrency"))
        return facts

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure((self.instance.rate is None) == (not self.setting), "a setting binds where there is a rate")
        for one in (self.instance, *self.topics.values()):
            one.check()
