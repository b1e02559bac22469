"""Find the level topics outside the policy that still hold waiting records.

A level that left the policy is read until it is empty. To find out, the committed offset of the retry group is compared
with the end of the log. The end counts transaction markers. So does the lane's progress, once it has read to the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from sidecar.core.record import Partition
from sidecar.kafka.errors import raise_partition_errors
from topics.names import Kind, Names

ANSWER_WITHIN = 1.0
"""Seconds. If a crashed pod's open transaction holds back an offset, the offset stays unknown for longer. Then
everything is asked again."""


def unlisted_levels(
    names: Names, mains: Collection[str], there: Iterable[str], wanted: Collection[str]
) -> frozenset[str]:
    """Return the group's level topics that exist and are not wanted. Names match exactly, never by a pattern."""
    found = set()
    for name in there:
        if "-RETRY-" in name and name not in wanted:  # most topics of a cluster are not ours
            role = names.role(name, mains)
            if role is not None and role.kind is Kind.LEVEL:
                found.add(name)
    return frozenset(found)


def undrained_levels(consumer: Consumer, partitions: Mapping[str, int]) -> frozenset[str] | None:
    """Return the topics with records that the consumer's group has not processed. None if Kafka does not say.

    `partitions`: the number of partitions by topic.
    """
    places = [(topic, number) for topic, count in partitions.items() for number in range(count)]
    if not places:
        return frozenset()
    try:
        # In this order, records processed meanwhile make a topic look fuller than it is, never emptier.
        committed = _offsets(consumer.committed([TopicPartition(*place) for place in places], timeout=ANSWER_WITHIN))
        begins = _found(consumer, places, OFFSET_BEGINNING)
        ends = _found(consumer, places, OFFSET_END)
    except KafkaException:
        return None
    return frozenset(topic for topic, number in places if _left(Partition(topic, number), committed, begins, ends))


def _left(
    place: Partition, committed: Mapping[Partition, int], begins: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> bool:
    begin = begins[place]
    return ends[place] > max(begin, committed[place])  # without a commit it is negative


def _found(consumer: Consumer, places: Iterable[tuple[str, int]], which: int) -> dict[Partition, int]:
    """Return the first or the end offset of each partition, in one request."""
    asked = [TopicPartition(*place, which) for place in places]
    return _offsets(consumer.offsets_for_times(asked, timeout=ANSWER_WITHIN))


def _offsets(places: list[TopicPartition]) -> dict[Partition, int]:
    return {Partition(place.topic, place.partition): place.offset for place in raise_partition_errors(places)}
