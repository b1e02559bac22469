"""What the policy topic says: the group's policy, and which instances there are. Read once, for several checks."""

from __future__ import annotations

import time
from typing import NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from sidecar.errors import BrokerError
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.admin.descriptions import ANSWER_SECONDS, DeniedError, busy, refused
from sidecar.kafka.client_config import follower_config
from sidecar.kafka.errors import retry_transient
from topics.names import Names
from topics.policy_record import PARTITION, Heard, InstanceHeard, PolicyHeard, parse_record

BATCH = 500
MOST = 2 * 1024 * 1024
"""Bytes of records that are kept; parsed they take some twenty times as much at worst."""
POLICY, INSTANCE = "policy", "instance/"

T = TypeVar("T")


class PolicyTopicRecord(NamedTuple):
    """A record of the policy topic, and when it was written (epoch ms)."""

    heard: Heard
    at: int


class Latest:
    """The last record of the policy and of each instance, in the order in which they were written, within MOST bytes.

    Whoever may write to the topic may name any number of instances: those heard of first are forgotten then.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[PolicyTopicRecord, int]] = {}
        self._bytes = 0

    def add(self, told: PolicyTopicRecord, size: int) -> None:
        """One more record, of so many bytes."""
        match told.heard:
            case PolicyHeard():
                name = POLICY
            case InstanceHeard(instance=instance):
                name = INSTANCE + instance
            case _:  # no check asks for it
                return
        self._forget(name)
        self._found[name] = (told, size)
        self._bytes += size
        while self._bytes > MOST:
            self._forget(next(one for one in self._found if one != POLICY))

    def records(self) -> tuple[PolicyTopicRecord, ...]:
        """All that is kept."""
        return tuple(told for told, _ in self._found.values())

    def _forget(self, name: str) -> None:
        self._bytes -= self._found.pop(name, (None, 0))[1]


def read_policy_topic(cluster: Cluster, names: Names) -> tuple[PolicyTopicRecord, ...] | None:
    """The last record of the policy and of each instance; None where the topic does not exist. Raises BrokerError."""
    found, denied = cluster.topics([names.policy])
    if denied:
        raise DeniedError(f"this user may not see {names.policy}")
    if not found:
        return None
    consumer = Consumer({**follower_config(cluster.kafka, names.retry_group, "reconsume-doctor"), "log_level": 0})
    try:
        begin, end = placed(consumer, names.policy)
        return read_to(consumer, end, names.policy) if begin < end else ()
    except KafkaException as error:
        raise refused(names.policy, error) from error
    finally:
        consumer.close()


def placed(consumer: Consumer, topic: str) -> tuple[int, int]:
    """Have it read the topic from its beginning; where that is, and its end. Raises KafkaException."""
    return retry_transient(lambda: assign_all(consumer, topic), ANSWER_SECONDS, busy)


def read_to(consumer: Consumer, end: int, topic: str) -> tuple[PolicyTopicRecord, ...]:
    """The last records up to an offset; raises KafkaException. After compaction only the partition's end tells it."""
    found = Latest()
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        for message in consumer.consume(1, 0.1) + consumer.consume(BATCH, 0):
            error = message.error()
            if error is None:
                told = PolicyTopicRecord(parse_record(message.key(), message.value()), message.timestamp()[1])
                found.add(told, len(message.value() or b""))
                if (message.offset() or 0) + 1 >= end:
                    return found.records()
            elif error.code() == KafkaError._PARTITION_EOF:
                return found.records()
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not error.retriable():
                raise KafkaException(error)  # a right on the group is needed for nothing here
    raise BrokerError(f"{topic} could not be read to its end within {ANSWER_SECONDS:g} s")


METADATA_WITHIN = 5.0


def assign_all(consumer: Consumer, topic: str) -> tuple[int, int]:
    """Have the consumer read the topic from its beginning; where that is, and where it ends now. Raises KafkaException.

    By numbers: asked for "the beginning" before the leader is known, librdkafka asks again only after 500 ms.
    """
    place = TopicPartition(topic, PARTITION)
    begin, end = consumer.get_watermark_offsets(place, timeout=METADATA_WITHIN, cached=False)
    consumer.assign([TopicPartition(topic, PARTITION, begin)])
    return begin, end
