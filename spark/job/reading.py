"""How the queries read thousands of partitions. Pure.

Spark reads each partition with a Kafka consumer of its own, and keeps consumers for the next batch by their consumer
group and partition. One that is made anew costs 10 ms of CPU and a connection, so both queries, and each start of them,
have the same consumer group (which nobody joins). What a consumer has fetched ahead stays in memory: therefore a
consumer's share is smaller where there are many.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

MOST_CONSUMERS, LEAST_CONSUMERS = 2_560, 64
"""Consumers that Spark keeps. With the lesser number, its own default, a job of more partitions makes nearly all of
them anew in each batch. The other is enough for both queries of 200 groups of six partitions: 430 MB of the heap,
170 kB each."""
FILES_PER_CONSUMER = 8
"""Open files for which there must be room for each; it has three."""
FEW = 64
"""So many partitions may be read with the limits of Kafka's client."""
FETCH_BYTES, LEAST_FETCH_BYTES = 1_048_576, 32_768
"""Bytes that are fetched of a partition at a time; a larger record comes all the same, alone."""
POLL_RECORDS, LEAST_POLL_RECORDS = 500, 32
"""Records that are taken at a time from what was fetched. Each time costs three requests."""
GROUP = "kafka.group.id"
"""The option that no setting of a user replaces: it tells consumers with other limits, or of other topics, apart."""
FETCH_WAIT_MS = 1
"""ms for which a broker may hold a fetch that finds nothing, 500 by default. Spark asks for a partition's first and
last offset after each fetch, and a broker answers a connection's requests in their order: so a task waits that long for
the fetch ahead, in one partition after another. With 20 ms a batch of twenty groups took twice as long."""
PARTITIONS_PER_TASK = 25
"""A task reads partition after partition, and waits for an answer of the broker four times for each."""
PARTITIONS_PER_LATE_TASK = 300
"""The same for a query that may be late. At 10 ms to the broker such a task takes 12 s; `/livez` counts on a batch a
minute."""
LEAST_TASKS = 2


def kept_consumers(files: int) -> int:
    """Return how many consumers Spark may keep in a process that may open so many files; negative: any number."""
    if files < 0:
        return MOST_CONSUMERS
    return max(LEAST_CONSUMERS, min(MOST_CONSUMERS, files // FILES_PER_CONSUMER))


class TopicEras:
    """Counts how often a topic that was read has become another one of the same name.

    What a consumer has fetched ahead of a former topic must not be taken for records of the present one.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._number = 0

    def take(self, ids: Mapping[str, str]) -> int:
        """Return the count, with topics that are read now: their ids by name."""
        if any(self._ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items()):
            self._number += 1
            self._ids.clear()
        self._ids |= ids
        return self._number


def consumer_options(partitions: int, era: int) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a query that reads so many partitions.

    Spark refuses different options for one consumer group and partition, so the group's name says what they are.
    """
    share = share_of(partitions)
    return {
        GROUP: f"reconsume-spark-{share}-{era}",
        "kafka.max.partition.fetch.bytes": str(max(FETCH_BYTES // share, LEAST_FETCH_BYTES)),
        "kafka.max.poll.records": str(max(POLL_RECORDS // share, LEAST_POLL_RECORDS)),
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        # A tenth of a consumer's cost, for metrics that nobody reads.
        "kafka.enable.metrics.push": "false",
        "kafka.auto.include.jmx.reporter": "false",
    }


def share_of(partitions: int) -> int:
    """Return how many times less a consumer may hold than where there are FEW: a power of two, so it changes seldom."""
    share = 1
    while share * FEW < partitions:
        share *= 2
    return share


def tasks_of(partitions: int, at_once: int, *, local: bool, urgent: bool) -> int:
    """Return how many tasks read so many partitions, where `at_once` can run.

    A task costs 5 ms, so a batch of few partitions has few. On one machine a query that is not urgent has fewer: it
    leaves the other cores to the one that is. On a cluster each thread has a core, and all are used.
    """
    if not local:
        return at_once
    late = max(1, ceil(partitions / PARTITIONS_PER_LATE_TASK))
    return min(at_once, max(LEAST_TASKS, partitions // PARTITIONS_PER_TASK) if urgent else late)
