"""A lane with everything that it runs on: its consumer's thread, its committer's thread, and the loop between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.core.gate import Gate
from sidecar.core.intake import Terms
from sidecar.core.lane import Lane
from sidecar.core.policy import Policy
from sidecar.core.ports import Ports
from sidecar.core.record import Partition
from sidecar.edges.assignment import Assignment
from sidecar.edges.clients import Properties, consumer_config, producer_config, reader_config
from sidecar.edges.clock import now
from sidecar.edges.committer import Committer
from sidecar.edges.consumer import ConsumerThread
from sidecar.edges.delivery import Delivery
from sidecar.edges.driver import Driver
from sidecar.edges.messages import Reading
from topics.foreign import foreign_life, read_foreign
from topics.headers import BadHeader, Headers, Life, parse_life

QUEUE_KIB = {"main": 16_384, "retry": 4_096}
"""What librdkafka fetches ahead, by lane: this sets the memory at full speed."""
STALLED_AFTER = 30.0
"""Seconds without a turn of the consumer's thread, beyond the lock's time, after which it counts as dead."""

_LOG = logging.getLogger("reconsume.lane")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one lane is to do. `waits`: its topics and their delay in ms, empty for main topics; on these the retry
    headers of the systems in `understand` are read. `terms`: which records, and how many of them."""

    name: str
    group: str
    topics: tuple[str, ...]
    waits: Mapping[str, int]
    start_at: str
    lock_timeout: float
    terms: Terms
    understand: tuple[str, ...] = ()


class Engine:
    """One lane at work. Made on the event loop. `observe` gets each transaction's result and seconds."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        kafka: Properties,
        gate: Gate,
        delivery: Delivery,
        observe: Callable[[str, float], None],
    ) -> None:
        self.plan = plan
        self.driver = Driver(asyncio.get_running_loop())
        self.assignment = Assignment(self.driver, start_at=plan.start_at, lock_timeout=plan.lock_timeout)
        client = f"reconsume-{plan.group}-{policy.instance}"
        self.consumer = ConsumerThread(
            consumer_config(kafka, plan.group, client, queue_kib=QUEUE_KIB[plan.name]),
            plan.topics,
            self.driver,
            self.assignment,
            reading_of(policy) if plan.waits else foreign_reading_of(plan.understand),
        )
        self.committer = Committer(
            producer_config(kafka, f"{policy.names.group}-{plan.name}-{policy.instance}", client),
            reader_config(kafka, plan.group, client),
            self.assignment,
            self.driver.committed,
            observe,
        )
        ports = Ports(self.consumer, delivery, self.committer.submit, self.driver.wake, delivery.recall)
        self.lane = self.driver.lane = Lane(policy, plan.waits, ports, gate, plan.terms)

    async def start(self) -> None:
        """Make the producer, then subscribe: `init_transactions` first ends what a predecessor left open."""
        self.committer.start()
        while not self.committer.ready.is_set():
            await asyncio.sleep(0.01)
        self.consumer.start()

    @property
    def started(self) -> bool:
        """Whether it consumes."""
        return self.consumer.is_alive()

    @property
    def last_error(self) -> str:
        """What Kafka said last that was wrong, to either thread; empty when nothing was."""
        return self.committer.last_error or self.consumer.last_error

    def ends(self) -> Mapping[Partition, int]:
        """Where each partition ended a few seconds ago."""
        return self.consumer.ends

    def topics(self) -> frozenset[str] | None:
        """The topics that the cluster has; None when it does not say. Blocks: not for the event loop."""
        return self.committer.topics()

    def problems(self) -> list[str]:
        """Why this lane makes no progress by its own fault; empty while all is well."""
        found = []
        if self.consumer.failure is not None:
            found.append(f"{self.plan.name}: the consumer has ended: {self.consumer.failure}")
        elif self.started and time.monotonic() - self.consumer.turned_at > STALLED_AFTER + self.plan.lock_timeout:
            found.append(f"{self.plan.name}: the consumer's thread stands still")
        if self.committer.ready.is_set() and not self.committer.is_alive():
            found.append(f"{self.plan.name}: the committer has ended")
        return found

    async def drain(self, timeout: float) -> None:
        """Give all partitions up in order and leave the group, within `timeout` seconds and one more."""
        self.consumer.stop(timeout)
        deadline = time.monotonic() + timeout + 1.0  # the group is left after the partitions are given up
        while self.consumer.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.committer.stop()


def reading_of(policy: Policy) -> Reading:
    """How our headers are read on the group's own topics."""

    def read(headers: Headers, _source: Partition, _offset: int, _timestamp: int) -> tuple[Life | None, str]:
        life = parse_life(headers, policy.topics, policy.latest_due(now().wall))
        return (None, f"bad-header: {life.text}") if isinstance(life, BadHeader) else (life, "")

    return read


def foreign_reading_of(understand: tuple[str, ...]) -> Reading | None:
    """How other systems' retry headers are read on main topics; None, which costs nothing, when none are."""
    if not understand:
        return None

    def read(headers: Headers, source: Partition, offset: int, timestamp: int) -> tuple[Life | None, str]:
        foreign = read_foreign(headers, understand)
        life = None if foreign is None else foreign_life(foreign, (*source, offset), timestamp, now().wall)
        return life, ""

    return read
