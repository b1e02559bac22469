"""What Kafka knows of the planted group: what it has committed, and who is a member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS


def commit(group: GroupTopics) -> None:
    """Let the group have done a part of what there is."""
    for name, topics in ((group.group, group.mains), (group.names.retry_group, group.retries)):
        consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": name, "enable.auto.commit": False})
        try:
            until(lambda: committed(consumer, topics), SECONDS, "the offsets are committed")  # noqa: B023 - runs now
        finally:
            consumer.close()


def committed(consumer: Consumer, topics: Sequence[str]) -> bool:
    """Commit offset 0 of these topics; False while the coordinator of a new broker is still loading."""
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0) for topic in topics], asynchronous=False)
    except KafkaException as failure:
        if not failure.args[0].retriable() and failure.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return False
    return True


def is_assigned(consumer: Consumer) -> bool:
    """Poll once; a poll may also return an error, which assigns nothing."""
    consumer.poll(0.1)
    return bool(consumer.assignment())


@contextmanager
def member(group: GroupTopics, instance: str) -> Iterator[None]:
    """A running instance, as Kafka sees it."""
    client = f"reconsume-{group.group}-{instance}"
    config = {"bootstrap.servers": group.bootstrap, "group.id": group.group, "client.id": client}
    # Nobody polls it while the pages are tried, which takes longer than the usual five minutes on a slow machine.
    consumer = Consumer({**config, "enable.auto.commit": False, "max.poll.interval.ms": 86_400_000})
    try:
        consumer.subscribe(list(group.mains))
        until(lambda: is_assigned(consumer), SECONDS, "the instance is a member of its group")
        yield
    finally:
        consumer.close()
