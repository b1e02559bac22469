"""Read the policy topic once for several checks: the group's policy, and which instances there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from sidecar.errors import BrokerError
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.admin.connection import DeniedError, busy
from sidecar.kafka.client_config import follower_config
from sidecar.kafka.errors import FIRST_ANSWER_SECONDS, retry_transient
from topics.names import Names
from topics.policy_record import PARTITION, Heard, InstanceHeard, PolicyHeard, parse_record

BATCH = 500
MOST = 2 * 1024 * 1024
"""Bytes of records that are kept. Parsed they take about twenty times as much at worst."""
POLICY, INSTANCE = "policy", "instance/"

T = TypeVar("T")


class PolicyTopicRecord(NamedTuple):
    """A record of the policy topic, and when it was written (epoch ms)."""

    heard: Heard
    at: int


class Latest:
    """The last record of the policy and of each instance, in the order of writing, within MOST bytes.

    A writer to the topic may name any number of instances. Above the limit, the oldest records of instances are
    dropped.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[PolicyTopicRecord, int]] = {}
        self._bytes = 0

    def add(self, told: PolicyTopicRecord, size: int) -> None:
        """Add a record of `size` bytes."""
        match told.heard:
            case PolicyHeard():
                name = POLICY
            case InstanceHeard(instance=instance):
                name = INSTANCE + instance
            case _:  # no check uses it
                return
        self._forget(name)
        self._found[name] = (told, size)
        self._bytes += size
        while self._bytes > MOST:
            self._forget(next(one for one in self._found if one != POLICY))

    def records(self) -> tuple[PolicyTopicRecord, ...]:
        return tuple(told for told, _ in self._found.values())

    def _forget(self, name: str) -> None:
        self._bytes -= self._found.pop(name, (None, 0))[1]


def read_policy_topic(cluster: Cluster, names: Names) -> tuple[PolicyTopicRecord, ...] | None:
    """Return the last record of the policy and of each instance. None if the topic does not exist.

    Raises BrokerError.
    """
    found, denied = cluster.topics([names.policy])
    if denied:
        raise DeniedError(f"this user may not see {names.policy}")
    if not found:
        return None
    consumer = Consumer({**follower_config(cluster.kafka, names.retry_group, cluster.client_id), "log_level": 0})
    try:
        begin, end = placed(consumer, names.policy)
        return read_to(consumer, end, names.policy) if begin < end else ()
    except KafkaException as error:
        raise cluster.fault(names.policy, error) from error
    finally:
        consumer.close()


def placed(consumer: Consumer, topic: str) -> tuple[int, int]:
    """Call `assign_all`, and retry it while the broker is busy. Raises KafkaException."""
    return retry_transient(lambda: assign_all(consumer, topic), FIRST_ANSWER_SECONDS, busy)


def read_to(consumer: Consumer, end: int, topic: str) -> tuple[PolicyTopicRecord, ...]:
    """Return the last records before the offset `end`. Raises as `messages_to`."""
    found = Latest()
    for message in messages_to(consumer, end, topic, time.monotonic() + FIRST_ANSWER_SECONDS):
        record = PolicyTopicRecord(parse_record(message.key(), message.value()), message.timestamp()[1])
        found.add(record, len(message.value() or b""))
    return found.records()


def messages_to(consumer: Consumer, end: int, topic: str, deadline: float) -> Iterator[Message]:
    """Yield the messages before the offset `end`, until `deadline` (monotonic seconds).

    Raises KafkaException, and BrokerError if it takes too long. After compaction the last offset may be missing: then
    only the client's end-of-partition event marks the end.
    """
    while time.monotonic() < deadline:
        for message in consumer.consume(1, 0.1) + consumer.consume(BATCH, 0):
            error = message.error()
            if error is None:
                yield message
                if (message.offset() or 0) + 1 >= end:
                    return
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not error.retriable():
                raise KafkaException(error)  # no right on the group is needed here
    raise BrokerError(f"{topic} could not be read to its end within {FIRST_ANSWER_SECONDS:g} s")


METADATA_WITHIN = 5.0


def assign_all(consumer: Consumer, topic: str) -> tuple[int, int]:
    """Have the consumer read the topic from its beginning. Return that offset and the end offset.

    Raises KafkaException.
    """
    place = TopicPartition(topic, PARTITION)
    begin, end = consumer.get_watermark_offsets(place, timeout=METADATA_WITHIN, cached=False)
    # By number: if asked for "the beginning" before the leader is known, librdkafka asks again only after 500 ms.
    consumer.assign([TopicPartition(topic, PARTITION, begin)])
    return begin, end
