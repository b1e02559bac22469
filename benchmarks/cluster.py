"""The broker and the topics of a benchmark."""

from __future__ import annotations

import random

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from reconsume.sidecar.settings.load import load
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.specs import Source, group_specs

PARTITIONS = 8
HEADERS = [("content-type", b"application/json"), ("tenant", b"acme"), ("trace", b"0123456789abcdef")]
VALUE = random.Random(1).randbytes(200)


def settings_of(sets: list[str]) -> Settings:
    """The settings as the sidecar itself would read them."""
    return load(None, sets, {})


def create(bootstrap: str, main: str, settings: Settings | None = None, partitions: int = PARTITIONS) -> None:
    """A main topic, and every topic of the group when there is one."""
    more = [] if settings is None else group_topics(main, settings, partitions)
    make(bootstrap, [NewTopic(main, partitions, 1), *more])


def group_topics(main: str, settings: Settings, partitions: int = PARTITIONS) -> list[NewTopic]:
    """Every topic of a group for a main topic that is there."""
    specs = group_specs(
        settings.names, [Source(main, partitions, 1, 1_048_588, 1)], settings.delays, ordered=settings.queued
    )
    return [NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config) for spec in specs]


def make(bootstrap: str, topics: list[NewTopic]) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values() if topics else ():
        future.result(30)


def fill(bootstrap: str, topic: str, records: int, partitions: int = PARTITIONS, value: bytes = VALUE) -> None:
    """Produce records of 200 B with a key and 3 headers, evenly over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, b"key-%d" % number, number % partitions, headers=HEADERS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise SystemExit("the broker did not take the records")


def committed(bootstrap: str, group: str, topic: str, partitions: int = PARTITIONS) -> int:
    """How many records of the topic the group has done, by its committed offsets."""
    from confluent_kafka import Consumer

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        places = reader.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=10)
    finally:
        reader.close()
    return sum(max(0, place.offset) for place in places)


def size(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> int:
    """How many offsets the topic has, those of transactions' markers among them."""
    from confluent_kafka import Consumer

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "size"})
    try:
        numbers = [TopicPartition(topic, number) for number in range(partitions)]
        marks = [reader.get_watermark_offsets(number, timeout=10) for number in numbers]
    finally:
        reader.close()
    return sum(mark[1] - mark[0] for mark in marks)
