"""What the next version of Reconsume may have left on a broker, made up."""

from __future__ import annotations

import json
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from reconsume.topics.policy_record import LARGEST
from tests.support.kafka.topic_io import SECONDS

MORE_PARTS = ".......8.later=1"
"""Behind a done set alone: none of the numbers, then parts that this version does not know."""


def leave_progress(bootstrap: str, group: str, progress: Mapping[TopicPartition, str]) -> None:
    """Commit these places with their metadata, as a member of the group that has left."""
    places = [
        TopicPartition(place.topic, place.partition, place.offset, metadata) for place, metadata in progress.items()
    ]
    consumer = _client(bootstrap, group)
    try:
        for done in consumer.commit(offsets=places, asynchronous=False) or ():
            assert done.error is None, done.error
    finally:
        consumer.close()


def left_progress(bootstrap: str, group: str, topic: str) -> str:
    """The metadata of partition 0."""
    consumer = _client(bootstrap, group)
    try:
        return consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS)[0].metadata or ""
    finally:
        consumer.close()


def _client(bootstrap: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})


def newer_policy(**more: object) -> bytes:
    """A policy of a form that this version cannot read."""
    value = json.dumps({"v": 2, "rules": [{"when": "http-5xx", "ladder": "rocketmq"}], **more}).encode()
    assert len(value) < LARGEST
    return value
