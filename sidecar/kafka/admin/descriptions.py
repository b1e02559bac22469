"""The cluster's answers to the checks as plain values, and how long a request is repeated."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from sidecar.errors import BrokerError
from sidecar.kafka.errors import COORDINATOR, LEADER, NEW_TOPIC, code_of, passing, retry_transient, sentence_of

ANSWER_SECONDS = 10.0
"""Seconds. The first request about a group makes a new cluster create the topic for it, which takes seconds."""
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
busy = passing(COORDINATOR, LEADER, NEW_TOPIC)
"""Whether an error passes by itself: the cluster's first group, a new topic, a broker that has just started."""
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})

Place: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""


class DeniedError(BrokerError):
    """This user may not make this request."""


class Topic(NamedTuple):
    """A topic as the cluster describes it.

    `operations`: what this user may do with it. `leaders`: the broker that leads each partition, −1 if there is none.
    `lagging`: the partitions that have fewer replicas in sync than assigned.
    """

    name: str
    partitions: int
    replication: int
    operations: frozenset[str]
    leaders: tuple[int, ...] = ()
    lagging: tuple[int, ...] = ()

    @property
    def places(self) -> list[Place]:
        """The partitions that have a leader, so that requests about them can be answered."""
        return [(self.name, number) for number, leader in enumerate(self.leaders) if leader >= 0]


class Member(NamedTuple):
    """A member of a consumer group, and the partitions that are assigned to it."""

    client: str
    host: str
    places: frozenset[Place]

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which it has a partition."""
        return frozenset(topic for topic, _ in self.places)


class ConsumerGroup(NamedTuple):
    """A consumer group. `operations`: what this user may do with it. `exists` is False if Kafka does not know it."""

    exists: bool
    members: tuple[Member, ...]
    operations: frozenset[str]


def answer(future: Future[Any]) -> Any:
    """Return the result in bounded time, whatever the client does. Raises KafkaException."""
    try:
        return future.result(ANSWER_SECONDS + 1)  # librdkafka itself gives up earlier
    except FutureTimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def answer_with_retry(future: Future[Any], again: Callable[[], Future[Any]]) -> Any:
    """Return the result; make the request `again` while the cluster is only busy. Raises KafkaException."""
    asked = [future]
    return retry_transient(lambda: answer(asked.pop() if asked else again()), ANSWER_SECONDS, busy)


def refused(what: str, error: KafkaException) -> BrokerError:
    """Return the exception to raise for a request that failed."""
    if code_of(error) in DENIED:
        return DeniedError(f"this user may not see {what} ({sentence_of(error)})")
    return BrokerError(f"cannot ask for {what}: {sentence_of(error)} ({error.args[0].name()})")


def topic_of(described: Any) -> Topic:
    """Return the client's description of a topic as a plain value."""
    parts = described.partitions
    return Topic(
        described.name,
        len(parts),
        min((len(part.replicas) for part in parts), default=0),
        names_of(described.authorized_operations),
        tuple(-1 if part.leader is None else part.leader.id for part in parts),
        tuple(part.id for part in parts if len(part.isr) < len(part.replicas)),
    )


def group_of(described: Any) -> ConsumerGroup:
    """Return the client's description of a group as a plain value."""
    members = tuple(
        Member(
            member.client_id,
            member.host,
            frozenset(
                (place.topic, place.partition)
                for place in (member.assignment.topic_partitions if member.assignment else ())
            ),
        )
        for member in described.members
    )
    exists = described.state is not ConsumerGroupState.DEAD
    return ConsumerGroup(exists, members, names_of(described.authorized_operations))


def names_of(operations: Any) -> frozenset[str]:
    """Return Kafka's names of the operations."""
    return frozenset(operation.name for operation in operations or ())
