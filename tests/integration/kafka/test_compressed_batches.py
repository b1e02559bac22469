"""Batches that are a thousand times as large as they are sent: what a topic's own setting does against them."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import fresh_group

RECORDS, SIZE = 20, 1_000_000
SECONDS = 60.0


def refused(bootstrap: str, topic: str) -> set[int]:
    """The errors with which Kafka refuses one batch of 20 MB of zeros, which is some kilobytes on the wire."""
    errors: set[int] = set()

    def note(error: KafkaError | None, _message: Message) -> None:
        errors.update(() if error is None else (error.code(),))

    large = {"batch.size": 2 * RECORDS * SIZE, "message.max.bytes": 2 * RECORDS * SIZE, "linger.ms": 1_000}
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "log_level": 0, **large})
    for _ in range(RECORDS):
        producer.produce(topic, bytes(SIZE), on_delivery=note)
    assert producer.flush(SECONDS) == 0
    return errors


def test_a_batch_that_hides_its_size_is_refused_where_the_topic_keeps_nothing_compressed(kafka: Broker) -> None:
    """Given the same batch for two topics, then the one whose records are kept as they are refuses it."""
    name = fresh_group(kafka.bootstrap).group
    plain = NewTopic(f"{name}-plain", 1, config={"compression.type": "uncompressed"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(f"{name}-usual", 1), plain]).values():
        future.result(SECONDS)
    assert refused(kafka.bootstrap, f"{name}-usual") == set()
    assert refused(kafka.bootstrap, f"{name}-plain") == {KafkaError.MSG_SIZE_TOO_LARGE}
