"""The required topics of a group: partitions, replicas and settings, from its names and main topics (contract 3.2).

Pure. A topic that exists is a `Source`, a required topic is a `TopicSpec`. `sidecar/kafka/admin` creates and compares
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reconsume.topics.names import Kind, Names

DAY = 86_400_000

MOST_PARTITIONS = 6
"""Partitions of level, ready and dead-letter topics. Retries are for the rare failure, and brokers pay for partitions ×
levels × replicas. More than six instances share the levels together. A topic that has more partitions is sound."""
EVENTS_PARTITIONS = 6
"""Partitions of events and the view. They are enough for several Spark tasks; each record is small."""
POLICY_PARTITIONS = 2
"""Partitions of the policy topic. The first is the control log: what operators and instances say, in one order, and
never in a transaction. The second is for what owners of partitions will note in their transactions: the open
transaction of a killed owner must not hide a hold or a heartbeat."""

HEADER_ROOM = 16 * 1024
"""Bytes for our headers. A copy of the largest record that the source accepts must fit (contract 3.2)."""
LARGEST_INT = 2**31 - 1
"""Kafka's limit of `max.message.bytes`."""

OUTAGE_MARGIN = 7 * DAY
"""ms for which the whole group may be away before a waiting retry is deleted."""
DLQ_RETENTION = 30 * DAY
QUEUE_RETENTION = 10 * DAY + 2 * OUTAGE_MARGIN
"""ms. The longest delay, and twice the time for which the whole group may be away."""
VIEW_RETENTION = DLQ_RETENTION + OUTAGE_MARGIN
"""ms. It is longer than the DLQ's, because a dead letter must not outlive its row in the view."""
EVENTS_RETENTION = 7 * DAY
POLICY_SEGMENT = 600_000
"""`segment.ms` of the policy topic. Each instance writes a heartbeat there once a minute, and every start reads what is
not compacted yet."""
POLICY_DIRTY_RATIO = "0.1"
"""`min.cleanable.dirty.ratio` of the policy topic: compaction begins when a tenth of the log is outdated, not half."""
COMPACTED_SEGMENT = DAY
"""`segment.ms` of the view. The open segment is never compacted. With Kafka's default of a week, every
reader would read a week."""


class TopicSpec(msgspec.Struct, frozen=True):
    """The required form of one topic. `config` holds Kafka's topic settings as text."""

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


def group_specs(
    names: Names, sources: Sequence[Source], delays: tuple[int, ...], *, rows: bool = False, ordered: bool = False
) -> tuple[TopicSpec, ...]:
    """Return every topic of the group, for the main topics `sources` and level delays in ms.

    `rows`: whether a Spark job writes the view, and needs a topic for its rows. `ordered`: whether
    records wait in queue topics. Raises ValueError without a source.
    """
    if not sources:
        raise ValueError("a group without main topics needs no topics of its own")
    specs: list[TopicSpec] = []
    # With the prefix {topic}-{group} each source has its own levels and DLQ, which depend on that source alone.
    shares = [[source] for source in sources] if names.per_topic else [sources]
    for share in shares:
        topic = share[0].name
        specs += (level_spec(names.level(delay, topic), delay, share) for delay in sorted(set(delays)))
        specs.append(dlq_spec(names.dlq(topic), share))
    if ordered:
        specs += (queue_spec(names.ordered(source.name), source) for source in sources)
    small = (spec for spec in small_specs(names, sources) if rows or spec.kind is not Kind.VIEW)
    return (*specs, ready_spec(names.ready, sources), *small)


def level_spec(name: str, delay: int, sources: Sequence[Source]) -> TopicSpec:
    """Return the specification of a level topic.

    The append time is the start of the wait, and no waiting record may be deleted.
    """
    return copies_spec(name, Kind.LEVEL, sources, "LogAppendTime", delay + OUTAGE_MARGIN)


def ready_spec(name: str, sources: Sequence[Source]) -> TopicSpec:
    """Return the specification of the ready topic.

    It has append time too, so that a copy with an old timestamp is not deleted at once.
    """
    return copies_spec(name, Kind.READY, sources, "LogAppendTime", OUTAGE_MARGIN)


def queue_spec(name: str, source: Source) -> TopicSpec:
    """Return the specification of the queue topic of a main topic.

    Who owns a main partition reads the queue partition of the same number, so there are as many. Nothing that waits may
    be deleted: what has waited for half of the retention is written again.
    """
    form = copies_spec(name, Kind.ORDERED, (source,), "LogAppendTime", QUEUE_RETENTION)
    return TopicSpec(name, form.kind, source.partitions, form.replication, form.config)


def dlq_spec(name: str, sources: Sequence[Source]) -> TopicSpec:
    """Return the specification of a dead-letter topic. It has CreateTime, as in KIP-1191."""
    return copies_spec(name, Kind.DLQ, sources, "CreateTime", DLQ_RETENTION)


def copies_spec(name: str, kind: Kind, sources: Sequence[Source], timestamps: str, retention: int) -> TopicSpec:
    """Return the specification of a topic that holds copies of the sources' records for `retention` ms.

    It is not compacted, because compaction would delete waiting records.
    """
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
    """Return the specifications of the topics for our own small records: events, view, sums, policy."""
    events = {
        "cleanup.policy": "delete",
        # The brokers' time: a Spark job trusts it although its own clock, or that of a sidecar, is wrong.
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(EVENTS_RETENTION),
        "retention.bytes": "-1",
    }
    policy = {
        "cleanup.policy": "compact",
        # The brokers' time: by it all instances agree which of them are silent.
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": POLICY_DIRTY_RATIO,
        "segment.ms": str(POLICY_SEGMENT),
    }
    return (
        spec(names.events, Kind.EVENTS, EVENTS_PARTITIONS, sources, events),
        spec(names.view, Kind.VIEW, EVENTS_PARTITIONS, sources, compacted(VIEW_RETENTION)),
        spec(names.policy, Kind.POLICY, POLICY_PARTITIONS, sources, policy),
    )


def compacted(retention: int) -> dict[str, str]:
    """Return the settings of a compacted topic whose keys are deleted after `retention` ms."""
    return {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(retention),
        "retention.bytes": "-1",
        "segment.ms": str(COMPACTED_SEGMENT),
    }


def spec(name: str, kind: Kind, partitions: int, sources: Sequence[Source], config: dict[str, str]) -> TopicSpec:
    """Return the specification of a topic that is as safe as the safest source.

    It has the most replicas and the most in-sync replicas of all sources.
    """
    replication = max(source.replication for source in sources)
    in_sync = max(source.min_insync_replicas for source in sources)
    return TopicSpec(name, kind, partitions, replication, {**config, "min.insync.replicas": str(in_sync)})
