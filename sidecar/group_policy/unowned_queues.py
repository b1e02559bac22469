"""Find queue partitions that no instance reads, as no main partition owns them, and what waits there: for people.

The main topic has fewer partitions than before, it left the configuration, `topic_prefix` is another one, or the group
delivers in no order any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.printable import plural
from reconsume.topics.names import Names
from reconsume.topics.removed import removed_queues


class UnownedQueue(NamedTuple):
    """A queue of which partitions are not read. `waiting`: how many offsets of them this group has not processed."""

    name: str
    topic: str
    partitions: tuple[int, ...]
    waiting: int
    because: str
    """Why nobody reads them, in one sentence without the subject."""
    mend: str


def unowned_queues(cluster: Cluster, names: Names, mains: Collection[str], *, in_order: bool) -> list[UnownedQueue]:
    """Return the queues of this group in which records wait that nobody reads. Raises BrokerError.

    `in_order`: the group delivers in order, and so reads the queues of its main topics, with a ladder or without.
    """
    own = _too_wide(cluster, names, mains) if in_order else _without_order(cluster, names, mains)
    return [*own, *_removed(cluster, names, mains)]


def _without_order(cluster: Cluster, names: Names, mains: Collection[str]) -> Iterable[UnownedQueue]:
    owners = names.queues_of(mains)
    for name, topic in cluster.topics(owners)[0].items():
        led = list(topic.led)
        waiting = _waiting(cluster, led, cluster.committed(names.group, led))
        mend = f"set deliver.order back until they are done or settled (`{hint('retries list --blocked')}`)"
        yield from _unowned(name, owners[name], waiting, "deliver.order is none", mend)


def _too_wide(cluster: Cluster, names: Names, mains: Collection[str]) -> Iterable[UnownedQueue]:
    owners = names.queues_of(mains)
    there, _ = cluster.topics([*owners, *mains])
    for name, main in owners.items():
        if name not in there or main not in there or (count := there[main].partitions) >= there[name].partitions:
            continue
        beyond = [partition for partition in there[name].led if partition[1] >= count]
        waiting = _waiting(cluster, beyond, cluster.committed(names.group, beyond))
        partitions = plural(there[name].partitions, "partition")
        mend = f"give {main} {partitions} again (kafka-topics.sh --alter), until they are done"
        yield from _unowned(name, main, waiting, f"{main} has no such partition", mend)


def _removed(cluster: Cluster, names: Names, mains: Collection[str]) -> Iterable[UnownedQueue]:
    for name, topic in removed_queues(names, mains, cluster.topic_names()).items():
        led = [partition for one in cluster.topics([name])[0].values() for partition in one.led]
        done = cluster.committed(names.group, led)
        if not done:  # a name may be another group's: what an owner has read has its progress
            continue
        why, mend = f"{topic} is not in topics", f"put {topic} back into topics: until they are done"
        if topic in mains:
            why, mend = "topic_prefix is another one", "set topic_prefix back until they are done"
        yield from _unowned(name, topic, _waiting(cluster, led, done), why, mend)


def _waiting(
    cluster: Cluster, partitions: Iterable[PartitionName], done: Mapping[PartitionName, int]
) -> dict[int, int]:
    spans = cluster.spans(partitions)
    counts = {one[1]: end - max(begin, done.get(one, 0)) for one, (begin, end) in spans.items()}
    return {number: count for number, count in sorted(counts.items()) if count > 0}


def _unowned(name: str, topic: str, waiting: Mapping[int, int], because: str, mend: str) -> Iterable[UnownedQueue]:
    if waiting:
        yield UnownedQueue(name, topic, tuple(waiting), sum(waiting.values()), because, mend)
