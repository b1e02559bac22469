"""Estimate what a group will need, in closed form: waiting retries, topics, requests, transactions, CPU and memory.

Attempts fail independently: the first with one probability, each retry with another. Waiting is Little's law: the
records per second times the time that each waits. The constants are measured (`constants.py`).
`tests/sim/test_capacity.py` and `benchmarks/capacity.py` compare the model with runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from reconsume.sidecar.capacity import constants as figures
from reconsume.topics.levels import Ladder, build_ladder
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import Source, TopicSpec, group_specs


class Load(msgspec.Struct, frozen=True):
    """The load of a group: `rate` in records/s, `fails` and `fails_again` as fractions, `attempt` in seconds.

    `fails_again` is the share of retries that fail. Failures come in bunches, so it is more than `fails`. `spark`: a
    Spark job keeps the view. `keys`: of how many keys the records are, if failures wait in queue topics, in order; None
    in a group without such a ladder. `parks`: what has used up its retries waits there for a person, and is no dead
    letter. `max_waiting`: records that may wait in one partition's queue. `most`: deliveries
    a second that an instance may make. Raises ValueError if a number makes no sense.
    """

    rate: float
    fails: float
    fails_again: float = 0.5
    attempt: float = 0.05
    instances: int = 1
    concurrency: int = 256
    partitions: int = 12
    record_bytes: int = 1_024
    replication: int = 3
    brokers: int = 3
    outage: float = 0.0
    retries: int = 16
    ladder: Ladder = build_ladder("rocketmq")
    delays: tuple[int, ...] = build_ladder("rocketmq").delays
    spark: bool = False
    keys: int | None = None
    parks: bool = False
    max_waiting: int = 20_000
    most: float = math.inf

    def __post_init__(self) -> None:
        if not (0 < self.rate <= 1e9 and 0 <= self.fails <= 1 and 0 <= self.fails_again <= 1):
            raise ValueError("the rate is above 0, and a fraction is 0 to 1")
        counts = (self.instances, self.partitions, self.brokers, self.replication, self.concurrency, self.max_waiting)
        if min(*counts, 1 if self.keys is None else self.keys) < 1:
            raise ValueError("there is at least one of everything")
        if self.attempt < 0 or self.outage < 0 or self.record_bytes < 0 or self.retries < 0:
            raise ValueError("nothing is less than 0")


class Flow(NamedTuple):
    """Records per second that come to each retry (`retries[0]`: retry 1), and that use all of them up (`dead`): those
    end in the DLQ, or are parked."""

    retries: tuple[float, ...]
    dead: float

    @property
    def retried(self) -> float:
        """Deliveries per second that are retries."""
        return sum(self.retries)


def flow(load: Load) -> Flow:
    """Return how many records per second fail for the n-th time."""
    failing = load.rate * load.fails
    retries = []
    for _ in range(load.retries):
        retries.append(failing)
        failing *= load.fails_again
    return Flow(tuple(retries), failing)


def waiting(load: Load) -> dict[int, float]:
    """Return how many records wait in each level, by its delay in ms, when nothing changes any more."""
    counts: dict[int, float] = {}
    for number, rate in enumerate(flow(load).retries, start=1):
        delay = load.ladder.delay(number)
        counts[delay] = counts.get(delay, 0.0) + rate * delay / 1_000
    return dict(sorted(counts.items()))


def put_behind(load: Load) -> float:
    """Return the records per second that come while an earlier one of their key waits, and are written behind it."""
    if load.keys is None:
        return 0.0
    return load.rate * min(1.0, sum(waiting(load).values()) / load.keys)


class Instance(NamedTuple):
    """The work of one sidecar. `in_flight`: requests at once. `busy`: the share of its full speed that is used."""

    pushes: float
    failures: float
    transactions: float
    cores: float
    memory: float
    in_flight: float
    busy: float


def instance(load: Load) -> Instance:
    """Return the work of one sidecar. The records are spread evenly."""
    rates, count = flow(load), load.instances
    pushes = (load.rate + rates.retried) / count
    failures = (rates.retried + rates.dead + put_behind(load)) / count  # a record behind is written as a copy, too
    busy = (pushes - failures) / figures.PUSHED_PER_S + failures / figures.FAILED_PER_S
    per_record = (pushes - failures) * figures.PUSHED_CPU + failures * figures.FAILED_CPU
    wakes = pushes / (1 + pushes * figures.WAKE_S)
    commits = transactions(load) / count
    cores = figures.IDLE_CPU + per_record + wakes * figures.WAKE_CPU + commits * figures.TRANSACTION_CPU
    in_flight = pushes * load.attempt
    held = min(in_flight, load.concurrency) * (load.record_bytes + 1_024)
    pushing = (figures.PUSH_BYTES - figures.IDLE_BYTES) * min(1.0, (pushes - failures) / figures.PUSHED_PER_S)
    failing = (figures.FAIL_BYTES - figures.IDLE_BYTES) * min(1.0, failures / figures.FAILED_PER_S)
    memory = figures.IDLE_BYTES + pushing + failing + held
    return Instance(pushes, failures, commits, cores, memory, in_flight, busy)


def transactions(load: Load) -> float:
    """Return the transactions per second of the whole group.

    A lane writes in one transaction what came while the one before was under way.
    """
    rates, count = flow(load), load.instances
    main = ((rates.retries[0] if rates.retries else rates.dead) + put_behind(load)) / count
    # Each retry that ends writes too: the next copy, or the event of its end.
    retried = rates.retried / count
    return count * (lane_transactions(main, load.rate / count) + lane_transactions(retried, retried))


def lane_transactions(writes: float, records: float) -> float:
    """Return the transactions per second of a lane with `records` settled a second, of which `writes` are written."""
    cycle = figures.TRANSACTION_S + figures.GROUP_S
    # Records that come within a cycle are written at its end. If none came, the next record is written at once.
    grouped = 1 / (cycle + math.exp(-writes * cycle) / writes) if writes else 0.0
    return max(min(records, 1 / figures.PROGRESS_S), grouped, writes / figures.GROUP_RECORDS)


class Crash(NamedTuple):
    """Second deliveries after one sidecar is killed: on average, and at most."""

    usual: float
    most: float


def crash(load: Load) -> Crash:
    """Return the second deliveries: records in flight, and those that had ended since the last commit of progress."""
    one = instance(load)
    out = min(one.in_flight, load.concurrency)
    main = load.rate / load.instances
    failing = load.rate * load.fails / load.instances
    # A failure's transaction carries the progress of its partitions too.
    interval = 1 / lane_transactions(failing, main)
    return Crash(out + main * interval / 2, out + main * (interval + figures.TRANSACTION_S))


class Storage(NamedTuple):
    """The topics of one kind: how many, their partitions and replicas, bytes with replicas, bytes per second."""

    topics: int
    partitions: int
    replicas: int
    size: float
    writes: float


SPARKS = (Kind.VIEW, Kind.STATS)
"""The topics that only a Spark job writes."""


def storage(load: Load) -> dict[Kind, Storage]:
    """Return the group's own topics on disk by kind, once retention has begun to delete.

    Those of the view are none of these unless a Spark job writes them.
    """
    source = Source("orders", load.partitions, load.replication, 1_048_588, max(1, load.replication - 1))
    by_kind: dict[Kind, Storage] = {}
    for spec in group_specs(Names("billing"), [source], load.delays, ordered=load.keys is not None):
        if spec.kind in SPARKS and not load.spark:
            continue
        old = by_kind.get(spec.kind, Storage(0, 0, 0, 0.0, 0.0))
        writes = written(load, spec) * load.replication
        size = writes * int(spec.config.get("retention.ms", 0)) / 1_000
        new = Storage(1, spec.partitions, spec.partitions * spec.replication, size, writes)
        by_kind[spec.kind] = Storage(*(a + b for a, b in zip(old, new, strict=True)))  # type: ignore[arg-type]
    return by_kind


def written(load: Load, spec: TopicSpec) -> float:
    """Return the bytes per second that are written to a topic, without replicas."""
    rates, role = flow(load), Names("billing").role(spec.name, ("orders",))
    copy = load.record_bytes + figures.OUR_HEADERS + figures.RECORD_OVERHEAD
    match spec.kind:
        case Kind.LEVEL:
            delay = 0 if role is None else role.delay
            return copy * sum(
                rate for number, rate in enumerate(rates.retries, 1) if load.ladder.delay(number) == delay
            )
        case Kind.ORDERED:
            return copy * (rates.retried + put_behind(load) + (rates.dead if load.parks else 0.0))
        case Kind.DLQ:
            dead = 0.0 if load.parks else rates.dead
            return dead * (load.record_bytes + figures.DEAD_HEADERS + figures.RECORD_OVERHEAD)
        case Kind.EVENTS:
            return events(load) * figures.EVENT_BYTES
        case Kind.VIEW:  # compacted: one row for each record that has failed
            return load.rate * load.fails * figures.VIEW_BYTES
        case _:
            return 0.0


def events(load: Load) -> float:
    """Return the events per second: each retry that is scheduled, and each end of a record that has failed."""
    rates = flow(load)
    return rates.retried + load.rate * load.fails
