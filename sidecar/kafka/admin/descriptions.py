"""The cluster's answers as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import ConsumerGroupState

from reconsume.topics.specs import Source

KAFKA_LIMIT = 1_048_588
"""Bytes. Kafka's default of `max.message.bytes`, used if this user may not see a main topic's own value."""

PartitionName: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""


class Offset(StrEnum):
    """The kind of offset that is requested of a partition."""

    BEGIN = "begin"
    END = "end"


class ListedOffset(NamedTuple):
    """An offset, and the timestamp of its record (epoch ms); negative if there is none.

    The timestamp is known only if a time was requested.
    """

    offset: int
    timestamp: int


class Span(NamedTuple):
    """The offsets of a partition from `begin` up to `end`."""

    begin: int
    end: int


class Topic(NamedTuple):
    """A topic as the cluster describes it.

    `config`: all its settings, including the broker's defaults, if they were requested. `id` is Kafka's own (KIP-516):
    a topic that was deleted and created again has another. `operations`: what this user may do with it. `leaders`: the
    broker that leads each partition, −1 if there is none. `lagging`: the partitions that have fewer replicas in sync
    than assigned.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = {}
    id: str = ""
    operations: frozenset[str] = frozenset()
    leaders: tuple[int, ...] = ()
    lagging: tuple[int, ...] = ()

    @property
    def all_partitions(self) -> list[PartitionName]:
        """All partitions."""
        return [(self.name, number) for number in range(self.partitions)]

    @property
    def led(self) -> list[PartitionName]:
        """The partitions that have a leader, so that requests about them can be answered."""
        return [(self.name, number) for number, leader in enumerate(self.leaders) if leader >= 0]


def led_partitions(topics: Iterable[Topic]) -> list[PartitionName]:
    """Return the partitions that have a leader."""
    return [partition for topic in topics for partition in topic.led]


def unled_partitions(topics: Iterable[Topic]) -> list[PartitionName]:
    """Return the partitions without a leader: nobody can say now what they hold."""
    return [partition for topic in topics for partition in topic.all_partitions if topic.leaders[partition[1]] < 0]


def unled_text(topics: Iterable[Topic], concerns: Callable[[PartitionName], bool] = lambda _partition: True) -> str:
    """Return why partitions without a leader were not read, those that concern the caller; empty if there are none."""
    unled = ", ".join(f"{name}[{number}]" for name, number in filter(concerns, unled_partitions(topics)))
    return f"without a leader, and so not read: {unled}" if unled else ""


class Member(NamedTuple):
    """A member of a consumer group, and the partitions that are assigned to it."""

    client: str
    host: str
    partitions: frozenset[PartitionName]

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which it has a partition."""
        return frozenset(topic for topic, _ in self.partitions)


class ConsumerGroup(NamedTuple):
    """A consumer group. `operations`: what this user may do with it. `exists` is False if Kafka does not know it."""

    exists: bool
    members: tuple[Member, ...]
    operations: frozenset[str]


def source_of(topic: Topic) -> Source:
    """Return the properties of a main topic that the group's own topics follow."""
    return Source(
        topic.name,
        topic.partitions,
        topic.replication,
        int(topic.config.get("max.message.bytes", KAFKA_LIMIT)),
        int(topic.config.get("min.insync.replicas", 1)),
    )


def topic_of(described: Any) -> Topic:
    """Return the client's description of a topic as a plain value."""
    parts = described.partitions
    return Topic(
        described.name,
        len(parts),
        min((len(part.replicas) for part in parts), default=0),
        id=str(described.topic_id),
        operations=names_of(described.authorized_operations),
        leaders=tuple(-1 if part.leader is None else part.leader.id for part in parts),
        lagging=tuple(part.id for part in parts if len(part.isr) < len(part.replicas)),
    )


def group_of(described: Any) -> ConsumerGroup:
    """Return the client's description of a group as a plain value."""
    members = tuple(
        Member(
            member.client_id,
            member.host,
            frozenset(
                (partition.topic, partition.partition)
                for partition in (member.assignment.topic_partitions if member.assignment else ())
            ),
        )
        for member in described.members
    )
    exists = described.state is not ConsumerGroupState.DEAD
    return ConsumerGroup(exists, members, names_of(described.authorized_operations))


def names_of(operations: Any) -> frozenset[str]:
    """Return Kafka's names of the operations."""
    return frozenset(operation.name for operation in operations or ())
