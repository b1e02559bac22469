"""Waiting until a group has nothing left to do: all that its topics hold is done, and Kafka knows it."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics

ANSWER = 20.0
"""Seconds that one question to Kafka may take."""


def await_quiet(group: GroupTopics, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until the committed progress of both lanes has reached the end of every partition.

    `meanwhile` is called between two looks: what a service that has to call does. Ends are high watermarks: a
    transaction that somebody left open keeps the group from being quiet.
    """
    lanes = {group.group: (*group.mains, *group.queues), group.names.retry_group: group.retries}
    readers = {lane: _reader(group, lane) for lane in lanes}
    places = {lane: _places(readers[lane], topics) for lane, topics in lanes.items()}

    def quiet() -> bool:
        meanwhile()
        return not behind()

    def behind() -> list[str]:
        # All progress before any end: what moves from one topic to another meanwhile is seen at the latter.
        try:
            reached = {lane: readers[lane].committed(places[lane], timeout=ANSWER) for lane in lanes}
            return [
                f"{place.topic}[{place.partition}]: {place.offset} of {end}"
                for lane in lanes
                for place in reached[lane]
                if max(place.offset, 0) < (end := _end(readers[lane], place))
            ]
        except KafkaException as failure:
            return [str(failure)]

    try:
        until(quiet, seconds, "the group is quiet")
    except AssertionError as late:
        late.add_note(f"behind: {'; '.join(behind())}")
        raise
    finally:
        for reader in readers.values():
            reader.close()


def _reader(group: GroupTopics, lane: str) -> Consumer:
    """Read_uncommitted: its watermarks are high watermarks, and `committed` never waits for an open transaction."""
    return Consumer(
        {
            "bootstrap.servers": group.bootstrap,
            "group.id": lane,
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )


def _places(reader: Consumer, topics: tuple[str, ...]) -> list[TopicPartition]:
    found = reader.list_topics(timeout=ANSWER).topics
    return [TopicPartition(topic, number) for topic in topics for number in found[topic].partitions]


def _end(reader: Consumer, place: TopicPartition) -> int:
    _, high = reader.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=ANSWER)
    return high
