"""Compare a load with its limits: which breaks first, how long an outage is caught up, how late retries are.

The values are shares of limits, from the model in `model.py`. If a limit is an assumption, `constants.py` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reconsume.sidecar.capacity import constants as figures
from reconsume.sidecar.capacity.key_lines import key_lines
from reconsume.sidecar.capacity.model import Load, events, flow, instance, put_behind, storage, transactions, waiting
from reconsume.topics.specs import MOST_PARTITIONS


class Outage(NamedTuple):
    """The backlog after the service was away: records on the main topics, and seconds until all are caught up.

    `seconds` is None if they are never caught up.
    """

    backlog: float
    seconds: float | None


def outage(load: Load) -> Outage:
    """Return the backlog that an outage leaves, and the time to catch up.

    A service that is away spends no retry. Records wait where they are, and are caught up at full speed.
    """
    backlog = load.rate * load.outage
    one = instance(load)
    by_requests = load.concurrency * load.instances / load.attempt if load.attempt else float("inf")
    by_rate = load.instances * min(load.most, one.pushes / one.busy)
    most = min(by_requests, by_rate) * load.rate / (load.rate + flow(load).retried)
    return Outage(backlog, backlog / (most - load.rate) if most > load.rate else None)


class Limit(NamedTuple):
    """A limit of a load: the share of it that is used (1 is all), and what helps."""

    what: str
    used: float
    mend: str


def limits(load: Load) -> list[Limit]:
    """Return the limits by how much of them is used, the fullest first: it breaks first."""
    one, stored = instance(load), storage(load)
    replicas = sum(kind.replicas for kind in stored.values()) + load.partitions * load.replication
    writes = sum(kind.writes for kind in stored.values())
    measures = [
        Limit("a sidecar's speed", one.busy, "more instances, batches or a Unix socket"),
        busiest(load),
        Limit("requests in flight", one.in_flight / load.concurrency, "deliver.concurrency, a faster service"),
        Limit("partitions for the instances", load.instances / load.partitions, "more partitions: others stand idle"),
        Limit(
            "transaction coordinators",
            transactions(load) / (min(load.brokers, figures.COORDINATORS) * figures.BROKER_TRANSACTIONS),
            "more brokers, or fewer and larger instances",
        ),
        Limit("replicas on the brokers", replicas / (load.brokers * figures.BROKER_PARTITIONS), "fewer levels"),
        Limit("the brokers' disks (retries)", writes / (load.brokers * figures.BROKER_BYTES_PER_S), "more brokers"),
    ]
    if load.most < float("inf"):
        measures.append(Limit("the rate of an instance", one.pushes / load.most, "deliver.rate, more instances"))
    measures += of_spark(load) if load.spark else []
    measures += [] if load.keys is None else of_keys(load, load.keys)
    return sorted(measures, key=lambda limit: -limit.used)


def of_spark(load: Load) -> list[Limit]:
    """Return the limits of the Spark job that keeps the view."""
    return [Limit("one Spark core", events(load) / figures.SPARK_EVENTS_PER_CORE, "more cores")]


def of_keys(load: Load, keys: int) -> list[Limit]:
    """Return the limits of the lines of keys, in a group with `retry.ordered_ladder`."""
    lines = key_lines(load, keys)
    limits = [Limit("the time of a key", lines.busy, "a shorter ladder, fewer failures, more keys")]
    if lines.behind is not None:  # else the lines grow until all partitions are at their bound
        used = (lines.blocked + lines.behind) / load.partitions / load.max_waiting
        limits.append(Limit("records that wait in a partition", used, "retry.ordered_max_waiting"))
    return limits


def busiest(load: Load) -> Limit:
    """Return how busy a partition of what waits makes its sidecar: of the busiest level, or of a queue topic."""
    if load.keys is None:
        mend = "{topic}-{group}, more groups: a level has 12"
        return Limit("a partition of a level", busiest_partition(load), mend)
    one = (flow(load).retried + put_behind(load)) / load.partitions
    return Limit("a partition of a queue", one / figures.FAILED_PER_S, "more partitions of the main topic")


def busiest_partition(load: Load) -> float:
    """Return how busy one partition of the busiest level makes its sidecar. A level has few partitions."""
    arriving = max((count * 1_000 / delay for delay, count in waiting(load).items()), default=0.0)
    one = arriving / min(load.partitions, MOST_PARTITIONS)
    return one * ((1 - load.fails_again) / figures.PUSHED_PER_S + load.fails_again / figures.FAILED_PER_S)


def lateness(load: Load) -> Mapping[str, float] | None:
    """Return ms after the due time at p50 and p99; None if queues grow, and lateness with them."""
    one = instance(load)
    used = (one.busy, busiest(load).used, one.in_flight / load.concurrency, one.pushes / load.most)
    if max(used) > figures.BUSY:
        return None
    return {"p50": figures.LATE_P50, "p99": figures.LATE_P99}
