"""Find the levels of main topics that left the configuration and still hold retries, for the sidecar and for people.

`topics/removed.py` reads the names. Where a name may be another group's, the committed offsets decide: the retry lane
commits an offset for each level partition that it was ever assigned, also if it has read nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.removed_levels import Undrained, undrained_levels, unlisted_levels
from reconsume.sidecar.kafka.consumer.committed_offsets import committed
from reconsume.sidecar.kafka.consumer.offset_lookup import OffsetLookup
from reconsume.topics.names import Names
from reconsume.topics.removed import RemovedLevel, removed_levels

if TYPE_CHECKING:  # the sidecar needs no admin client for its own search
    from reconsume.sidecar.kafka.admin.cluster import Cluster


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
        numbered = [partition for topic in cluster.topics([level.name])[0].values() for partition in topic.led]
        done, spans = cluster.committed(names.retry_group, numbered), cluster.spans(numbered)
        if level.others and not done:
            continue
        waiting = sum(max(0, end - max(begin, done.get(partition, 0))) for partition, (begin, end) in spans.items())
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
