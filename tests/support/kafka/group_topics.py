"""The topics of one test's group: fresh names, made in one request, with any setting overridden."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import Source, TopicSpec, group_specs
from tests.support.deadline import until
from tests.support.kafka.topic_io import SECONDS, serve

DELAYS = (1_000, 2_000, 5_000)
"""ms. A short table, so that a test sees a record through all its levels in seconds."""
UNUSED = (Kind.VIEW, Kind.POLICY)
"""Kinds that the sidecar does without; each topic costs the broker some 50 ms."""
KAFKA_LIMIT = 1_048_588
"""The broker's default of `max.message.bytes`."""


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """A group, where it lives, and what its topics are called."""

    bootstrap: str
    group: str
    mains: tuple[str, ...]
    delays: tuple[int, ...] = DELAYS
    template: str = "{group}"
    queued: bool = False
    """Whether order survives long waits, in queue topics."""

    @property
    def names(self) -> Names:
        """The names that follow from the group."""
        return Names(self.group, self.template)

    @property
    def main(self) -> str:
        """The only main topic, or the first."""
        return self.mains[0]

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, main): delay for delay in self.delays for main in self.mains}

    @property
    def retries(self) -> tuple[str, ...]:
        """The topics that the retry lane reads: levels and ready."""
        return (*self.levels, self.names.ready)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue topics."""
        return tuple(self.names.queues_of(self.mains)) if self.queued else ()

    @property
    def dlq(self) -> str:
        """The dead letter topic."""
        return self.names.dlq(self.main)


def fresh_group(bootstrap: str, mains: int = 1, delays: tuple[int, ...] = DELAYS) -> GroupTopics:
    """A group and main topics that nobody has used; nothing is created."""
    token = uuid.uuid4().hex[:10]
    names = tuple(f"orders-{token}" if number == 0 else f"orders{number}-{token}" for number in range(mains))
    return GroupTopics(bootstrap, f"bill-{token}", names, delays)


def specs_of(
    group: GroupTopics, partitions: int = 2, replication: int = 1, also: Collection[Kind] = ()
) -> tuple[TopicSpec, ...]:
    """What every topic of the group must be, main topics first; of those that few tests need, only the kinds `also`."""
    in_sync = 2 if replication > 2 else 1
    sources = [Source(name, partitions, replication, KAFKA_LIMIT, in_sync) for name in group.mains]
    mains = [
        TopicSpec(name, Kind.MAIN, partitions, replication, {"min.insync.replicas": str(in_sync)})
        for name in group.mains
    ]
    unused = set(UNUSED) - set(also)
    specs = group_specs(group.names, sources, group.delays, rows=True, ordered=group.queued)
    return (*mains, *(spec for spec in specs if spec.kind not in unused))


def create_group(
    group: GroupTopics,
    partitions: int = 2,
    *,
    replication: int = 1,
    config: Mapping[str, Mapping[str, str]] | None = None,
    leave_out: Collection[str] = (),
    also: Collection[Kind] = (),
) -> GroupTopics:
    """Create the group's topics, with the rarer kinds `also`; `config` overrides settings by topic, topics in
    `leave_out` stay missing."""
    wanted = [spec for spec in specs_of(group, partitions, replication, also) if spec.name not in leave_out]
    create_specs(group.bootstrap, wanted, config or {})
    return group


def create_specs(
    bootstrap: str, specs: Sequence[TopicSpec], config: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Create topics in one request and wait until every partition has a leader. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    news = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication,
            config={**spec.config, **(config or {}).get(spec.name, {})},
        )
        for spec in specs
    ]
    for future in admin.create_topics(news).values():
        future.result(SECONDS)

    def led() -> bool:
        topics = admin.list_topics(timeout=SECONDS).topics
        found = [topics.get(spec.name) for spec in specs]
        return all(
            topic is not None
            and len(topic.partitions) == spec.partitions
            and all(partition.leader >= 0 for partition in topic.partitions.values())
            for spec, topic in zip(specs, found, strict=True)
        )

    until(led, SECONDS, f"every partition of {len(specs)} topics has a leader")
    places = [TopicPartition(spec.name, number) for spec in specs for number in range(spec.partitions)]
    until(lambda: serve(admin, places), SECONDS, f"every leader of {len(specs)} topics serves")


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic, as an operator would. Raises KafkaException.

    The controller has it at its answer, and a broker some time later: it is waited until one tells it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def told() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        return bool(admin.describe_configs([asked])[asked].result(SECONDS)[name].value == value)

    until(told, SECONDS, f"the broker tells {name} = {value}")
