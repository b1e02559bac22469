"""Find the levels of main topics that left the configuration and still hold retries, for the sidecar and for people.

`topics/removed.py` reads the names. Where a name may be another group's, the committed offsets decide: the retry lane
commits an offset for each level partition that it was ever assigned, also if it has read nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.group_policy.removed_levels import ANSWER_WITHIN, undrained_levels, unlisted_levels
from sidecar.kafka.errors import raise_partition_errors
from topics.names import Names
from topics.removed import RemovedLevel, removed_levels

if TYPE_CHECKING:  # the sidecar needs no admin client for its own search
    from sidecar.kafka.admin.cluster import Cluster


class Leftover(NamedTuple):
    """A level of a removed main topic. `waiting`: how many offsets of it this group has not processed."""

    level: RemovedLevel
    waiting: int


def leftover_levels(
    consumer: Consumer, names: Names, mains: Collection[str], there: Mapping[str, int], wanted: Collection[str]
) -> frozenset[str] | None:
    """Return the levels that are not wanted and hold records that the consumer's group has not processed.

    They left the policy, or their main topic left the configuration. None if Kafka does not say. `there`: all topics of
    the cluster, with the number of their partitions.
    """
    removed = removed_levels(names, mains, there)
    doubtful = {level.name: there[level.name] for level in removed if level.others}
    try:
        read = _read_before(consumer, doubtful)
    except KafkaException:
        return None
    own = {level.name for level in removed if not level.others} | read
    return undrained_levels(
        consumer, {name: there[name] for name in own | unlisted_levels(names, mains, there, wanted)}
    )


def leftovers(cluster: Cluster, names: Names, mains: Collection[str]) -> list[Leftover]:
    """Return the levels of removed main topics that hold retries of this group. Raises BrokerError."""
    found = []
    for level in removed_levels(names, mains, cluster.topic_names()) if names.per_topic else ():
        places = [place for topic in cluster.topics([level.name])[0].values() for place in topic.led]
        committed, spans = cluster.committed(names.retry_group, places), cluster.spans(places)
        if level.others and not committed:
            continue
        waiting = sum(max(0, end - max(begin, committed.get(place, 0))) for place, (begin, end) in spans.items())
        found += [Leftover(level, waiting)] if waiting else []
    return found


def _read_before(consumer: Consumer, partitions: Mapping[str, int]) -> frozenset[str]:
    """Return the topics of which the consumer's group has committed an offset. Raises KafkaException."""
    asked = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    if not asked:
        return frozenset()
    places = raise_partition_errors(consumer.committed(asked, timeout=ANSWER_WITHIN))
    return frozenset(place.topic for place in places if place.offset >= 0)
