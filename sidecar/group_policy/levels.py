"""Find what waits where no configuration looks any more: levels that left the policy, and topics that were removed.

- A level that left the policy, or the last main topic that used it, is read until it is empty. To find out, the
  committed offset of the retry group is compared with the end of the log. The end counts transaction markers; so does
  the lane's progress, once it has read to the end. Each level is compared on its own: one whose leader does not answer
  says nothing of the others. `topics/removed.py` reads the names. Where a name may be another group's, the committed
  offsets decide: the retry lane commits an offset for each level partition that it was ever assigned, even if it has
  read nothing of it. The follower looks (`leftover_levels`), on its thread; `DrainingLevels` is on the event loop.
- `leftovers` and `unowned_queues` report the same, and queue partitions that no instance reads, to commands and
  `doctor`. A queue has no owner if the main topic has fewer partitions than before, or left the configuration, if
  `topic_prefix` is another one, or if the group delivers in no order any more.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.queries import committed_with_queries
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.consumer.log_checks import OffsetLookup, edges
from reconsume.sidecar.kafka.consumer.start_offsets import committed
from reconsume.sidecar.printable import plural
from reconsume.topics.names import Kind, Names
from reconsume.topics.removed import RemovedLevel, removed_levels, removed_queues, removed_topics

if TYPE_CHECKING:  # the sidecar needs no admin client for its own search
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.kafka.admin.descriptions import PartitionName

_LOG = logging.getLogger("reconsume.policy")


class Undrained(NamedTuple):
    """The levels that the group has not processed to their end, and those of which Kafka does not say it."""

    holding: frozenset[str]
    unknown: frozenset[str]


def unlisted_levels(
    names: Names, mains: Collection[str], there: Iterable[str], wanted: Collection[str]
) -> frozenset[str]:
    """Return the group's level topics that exist and are not wanted. Names match exactly, never by a pattern."""
    levels = set()
    for name in there:
        if "-RETRY-" in name and name not in wanted:  # most topics of a cluster are not ours
            role = names.role(name, mains)
            if role is not None and role.kind is Kind.LEVEL:
                levels.add(name)
    return frozenset(levels)


def undrained_levels(logs: OffsetLookup, partitions: Mapping[str, int]) -> Undrained:
    """Return which topics hold records that the consumer's group has not processed.

    `partitions`: the number of partitions by topic.
    """
    sources = [Partition(topic, number) for topic, count in partitions.items() for number in range(count)]
    if not sources:
        return Undrained(frozenset(), frozenset())
    # In this order, records processed meanwhile make a topic look fuller than it is, never emptier.
    done = committed(logs.consumer, sources)
    edges_of = edges(logs, done)
    begun = {source: edge.low if (got := done[source]) is None else got.next for source, edge in edges_of.items()}
    holding = {source.topic for source, edge in edges_of.items() if edge.high > max(edge.low, begun[source])}
    return Undrained(
        frozenset(holding), frozenset(source.topic for source in sources if source not in edges_of) - holding
    )


class Leftover(NamedTuple):
    """A level of a removed main topic. `waiting`: how many offsets of it this group has not processed."""

    level: RemovedLevel
    waiting: int


def leftover_levels(
    logs: OffsetLookup, names: Names, mains: Collection[str], there: Mapping[str, int], wanted: Collection[str]
) -> Undrained:
    """Return which levels that are not wanted hold records that the consumer's group has not processed.

    They left the policy, or their main topic left the configuration. `there`: all topics of the cluster, with the
    number of their partitions.
    """
    removed = removed_levels(names, mains, there)
    read, unanswered = _read_before(logs, {level.name: there[level.name] for level in removed if level.others})
    own = {level.name for level in removed if not level.others} | read | unlisted_levels(names, mains, there, wanted)
    levels = undrained_levels(logs, {name: there[name] for name in own})
    return Undrained(levels.holding, levels.unknown | unanswered)


def leftovers(cluster: Cluster, names: Names, mains: Collection[str]) -> list[Leftover]:
    """Return the levels of removed main topics that hold retries of this group. Raises BrokerError."""
    counted = []
    for level in removed_levels(names, mains, cluster.topic_names()) if names.per_topic else ():
        numbered = [one for topic in cluster.visible([level.name]).values() for one in topic.led]
        done = committed_with_queries(cluster, names, names.retry_group, numbered)
        if level.others and not done:
            continue
        waiting = sum(cluster.unread(numbered, done).values())
        counted += [Leftover(level, waiting)] if waiting else []
    return counted


def _read_before(logs: OffsetLookup, partitions: Mapping[str, int]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the topics of which the consumer's group has committed an offset, and those that Kafka leaves open."""
    sources = [Partition(topic, number) for topic, count in partitions.items() for number in range(count)]
    if not sources:
        return frozenset(), frozenset()
    answered = committed(logs.consumer, sources)
    read = frozenset(source.topic for source, progress in answered.items() if progress is not None)
    return read, frozenset(source.topic for source in sources if source not in answered) - read


class DrainingLevels:
    """Knows the levels outside the policy that may hold records, by what is seen of the cluster's topics."""

    def __init__(self, names: Names, mains: frozenset[str]) -> None:
        self._names, self._mains = names, mains
        self.levels: frozenset[str] = frozenset()
        self.is_unsure = False
        """Whether Kafka did not say of each level whether it holds records."""

    def see(self, undrained: Undrained) -> frozenset[str] | None:
        """Take in what Kafka says. Return the levels that are empty now; None if nothing has changed.

        A level of which Kafka says nothing stays as it was.
        """
        levels = undrained.holding | (self.levels & undrained.unknown)
        if levels == self.levels:
            return None
        empty, self.levels = self.levels - levels, levels
        return empty

    def leave(self, levels: Set[str]) -> None:
        """Note levels that leave the policy: they are read until a snapshot of the topics shows that they are empty."""
        self.levels |= levels

    def rejoin(self, levels: Set[str]) -> None:
        """Note levels that are of the policy (again)."""
        self.levels -= levels

    def removed_topics(self) -> list[str]:
        """Return the main topics that left the configuration and whose own levels still hold retries."""
        return removed_topics(self._names, self.levels, self._mains)

    def log_empty(self, levels: Set[str]) -> None:
        """Log which levels are no longer read."""
        if levels:
            text, extra = "levels outside the policy are empty and no longer read: %s", {"event": "levels-empty"}
            _LOG.info(text, ", ".join(sorted(levels)), extra=extra)

    def log(self) -> None:
        """Log which levels are read, and of which topics that left the configuration."""
        if self.levels:
            names = ", ".join(sorted(self.levels))
            text, extra = "levels outside the policy are read until they are empty: %s", {"event": "levels-left"}
            _LOG.info(text, names, extra=extra)
        if removed := self.removed_topics():
            text = "retries of topics that left the configuration are passed on, and become dead letters in the end: %s"
            _LOG.warning(text, ", ".join(removed), extra={"event": "topics-removed", "about": removed})


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
    for name, topic in cluster.visible(owners).items():
        led = list(topic.led)
        waiting = _waiting(cluster, led, cluster.committed(names.group, led))
        mend = f"set deliver.order back until they are done or settled (`{hint('retries list --blocked')}`)"
        yield from _unowned(name, owners[name], waiting, "deliver.order is none", mend)


def _too_wide(cluster: Cluster, names: Names, mains: Collection[str]) -> Iterable[UnownedQueue]:
    owners = names.queues_of(mains)
    there = cluster.visible([*owners, *mains])
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
        led = [one for topic in cluster.visible([name]).values() for one in topic.led]
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
    return {number: count for (_, number), count in cluster.unread(partitions, done).items()}


def _unowned(name: str, topic: str, waiting: Mapping[int, int], because: str, mend: str) -> Iterable[UnownedQueue]:
    if waiting:
        yield UnownedQueue(name, topic, tuple(waiting), sum(waiting.values()), because, mend)
