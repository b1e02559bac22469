"""What the group's topics must be: partitions, replicas and settings, from its names and its main topics (contract §2).

Pure: what is there is a value (`Source`), what should be is a value (`TopicSpec`). Creating and comparing is the
admin edge's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topics.names import Kind, Names

DAY = 86_400_000

MOST_PARTITIONS = 12
"""For level, ready and dead letter topics. Retries are for the rare failure, and a group has some 20 of these topics:
partitions × levels × replicas is what the brokers pay. Twelve instances can still share a level."""
EVENTS_PARTITIONS = 6
"""For events and the view: enough for several Spark tasks; each record is small."""
SINGLE_PARTITION = 1
"""For sums and policy: few records, and the order of policies must be total."""

HEADER_ROOM = 16 * 1024
"""Bytes that our headers may add: a copy of the largest record that the source takes must fit (contract §2)."""
LARGEST_INT = 2**31 - 1
"""Kafka's limit of `max.message.bytes`."""

OUTAGE_MARGIN = 7 * DAY
"""How long, in ms, the whole group may be away before a waiting retry is deleted."""
DLQ_RETENTION = 30 * DAY
VIEW_RETENTION = DLQ_RETENTION + OUTAGE_MARGIN
"""Longer than the DLQ's: a dead letter must not outlive what the view says of it."""
EVENTS_RETENTION = 7 * DAY
STATS_RETENTION = 7 * DAY
POLICY_SEGMENT = DAY // 4
"""`segment.ms` of the policy topic: each instance tells its subscription there once a minute, and every start reads
what is not compacted yet: 360 records an instance, some 50 KiB."""
COMPACTED_SEGMENT = DAY
"""`segment.ms` of the view and the sums: the open segment is never compacted, and Kafka's week would be read by all."""


class TopicSpec(msgspec.Struct, frozen=True):
    """One topic as it must be; `config` holds Kafka's topic settings as text."""

    name: str
    kind: Kind
    partitions: int
    replication: int
    config: dict[str, str]


class Source(msgspec.Struct, frozen=True):
    """A main topic as it was found."""

    name: str
    partitions: int
    replication: int
    max_message_bytes: int
    min_insync_replicas: int


def group_specs(names: Names, sources: Sequence[Source], delays: tuple[int, ...]) -> tuple[TopicSpec, ...]:
    """Every topic of the group, for main topics `sources` and level delays in ms; ValueError without a source."""
    if not sources:
        raise ValueError("a group without main topics needs no topics of its own")
    specs: list[TopicSpec] = []
    # With the prefix {topic}-{group} each source has its own levels and DLQ, and they follow that source alone.
    shares = [[source] for source in sources] if names.per_topic else [sources]
    for share in shares:
        topic = share[0].name
        specs += (level_spec(names.level(delay, topic), delay, share) for delay in sorted(set(delays)))
        specs.append(dlq_spec(names.dlq(topic), share))
    return (*specs, ready_spec(names.ready, sources), *small_specs(names, sources))


def level_spec(name: str, delay: int, sources: Sequence[Source]) -> TopicSpec:
    """A level topic: the append time is when the wait began, and nothing that still waits may be deleted."""
    return copies_spec(name, Kind.LEVEL, sources, "LogAppendTime", delay + OUTAGE_MARGIN)


def ready_spec(name: str, sources: Sequence[Source]) -> TopicSpec:
    """The ready topic: append time too, so that a copy stamped with an old time is not deleted at once."""
    return copies_spec(name, Kind.READY, sources, "LogAppendTime", OUTAGE_MARGIN)


def dlq_spec(name: str, sources: Sequence[Source]) -> TopicSpec:
    """A dead letter topic; CreateTime as KIP-1191 has it."""
    return copies_spec(name, Kind.DLQ, sources, "CreateTime", DLQ_RETENTION)


def copies_spec(name: str, kind: Kind, sources: Sequence[Source], timestamps: str, retention: int) -> TopicSpec:
    """A topic that holds copies of the sources' records for `retention` ms; compaction would delete waiting ones."""
    largest = max(source.max_message_bytes for source in sources) + HEADER_ROOM
    config = {
        "cleanup.policy": "delete",
        "message.timestamp.type": timestamps,
        "retention.ms": str(retention),
        "retention.bytes": "-1",
        "max.message.bytes": str(min(largest, LARGEST_INT)),
    }
    partitions = min(max(source.partitions for source in sources), MOST_PARTITIONS)
    return spec(name, kind, partitions, sources, config)


def small_specs(names: Names, sources: Sequence[Source]) -> tuple[TopicSpec, ...]:
    """The topics of small records of our own: events, view, sums, policy."""
    events = {"cleanup.policy": "delete", "retention.ms": str(EVENTS_RETENTION), "retention.bytes": "-1"}
    policy = {"cleanup.policy": "compact", "segment.ms": str(POLICY_SEGMENT)}
    return (
        spec(names.events, Kind.EVENTS, EVENTS_PARTITIONS, sources, events),
        spec(names.view, Kind.VIEW, EVENTS_PARTITIONS, sources, compacted(VIEW_RETENTION)),
        spec(names.stats, Kind.STATS, SINGLE_PARTITION, sources, compacted(STATS_RETENTION)),
        spec(names.policy, Kind.POLICY, SINGLE_PARTITION, sources, policy),
    )


def compacted(retention: int) -> dict[str, str]:
    """The settings of a compacted topic whose keys are forgotten after `retention` ms."""
    return {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(retention),
        "retention.bytes": "-1",
        "segment.ms": str(COMPACTED_SEGMENT),
    }


def spec(name: str, kind: Kind, partitions: int, sources: Sequence[Source], config: dict[str, str]) -> TopicSpec:
    """A topic as safe as the safest source: the most replicas and the most in-sync replicas of them."""
    replication = max(source.replication for source in sources)
    in_sync = max(source.min_insync_replicas for source in sources)
    return TopicSpec(name, kind, partitions, replication, {**config, "min.insync.replicas": str(in_sync)})
