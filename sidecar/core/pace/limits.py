"""All limits of a dispatcher beside its pace: the rate of the instance, and what main topics have of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.instance_rate import InstanceRate
from reconsume.sidecar.core.pace.topic_limits import TopicLimit, TopicLimits, TopicTerms
from reconsume.sidecar.core.record import NEVER, Now, Record
from reconsume.topics.rates import Rate


class LimitFacts(NamedTuple):
    """One limit that is in force. `most`: records a second, or records in flight. `waits`: whether records wait for it.

    `limit`: `rate`, `group_rate` or `concurrency`. `topic`: None for a limit of all.
    """

    limit: str
    topic: str | None
    most: float
    waits: bool


class DeliveryLimits:
    """The rate of the instance, and the limits of its topics. Without any, nothing of this is asked on a record's way.

    `at_receive`: a record goes when it is received, and not when it is offered (pull). `since_ms`: the start.
    Invariant: they are asked wherever there are some.
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
        self.rate = InstanceRate(rate, group_rate, since_ms, at_receive=at_receive)
        self.topics = TopicLimits(terms, since_ms, at_receive=at_receive) if terms else None
        self.active = self.topics is not None or self.rate.bucket is not None
        """Whether there are limits."""

    def set_rates(self, rate: Rate | None, group_rate: Rate | None, now: Now) -> None:
        """Let other rates of the instance and the group hold from now on."""
        self.rate.set(rate, group_rate, now.steady_ms)
        self.active = self.topics is not None or self.rate.bucket is not None

    def room(self, now: Now) -> int:
        """Let topics go on whose limit is reached no more; return how many records may go now."""
        if self.topics is not None:
            self.topics.look(now.steady_ms)
        return self.rate.room(now.steady_ms)

    def next_at(self, now: Now, *, full: bool) -> int:
        """Return the steady time (ms) at which more may go. `full`: records wait for the rate of the instance."""
        at = NEVER if self.topics is None else self.topics.next_at()
        return min(at, self.rate.next_at(now.steady_ms)) if full else at

    def received(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service has received records that were offered (pull)."""
        self.rate.received(len(records), now.steady_ms)
        for record in records if self.topics is not None else ():
            if self.topics is not None and (limit := self.topics.of_record(record)) is not None:
                limit.received(now.steady_ms)

    def withdrawn(self, records: Iterable[Record]) -> None:
        """Note that records are offered no more, which nobody has received (pull)."""
        for record in records if self.topics is not None else ():
            if self.topics is not None and (limit := self.topics.of_record(record)) is not None:
                limit.withdrawn()

    def facts(self, *, full: bool) -> Iterator[LimitFacts]:
        """Yield each limit in force: of the two rates of the instance the one that binds. `full`: as in `next_at`."""
        if (bucket := self.rate.bucket) is not None:
            yield LimitFacts(self.rate.setting, None, bucket.rate.per_second, full)
        for limit in () if self.topics is None else self.topics.all():
            yield from _facts_of(limit)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.active == (self.topics is not None or self.rate.bucket is not None), "limits are asked")
        self.rate.check()
        if self.topics is not None:
            self.topics.check()


def _facts_of(limit: TopicLimit) -> Iterator[LimitFacts]:
    terms, binds = limit.terms, limit.binds
    if terms.rate is not None:
        yield LimitFacts("rate", limit.name, terms.rate.per_second, binds == "rate")
    if terms.concurrency is not None:
        yield LimitFacts("concurrency", limit.name, terms.concurrency, binds == "concurrency")
