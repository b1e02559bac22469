"""What is true of a lane at one moment, for metrics, `/status` and the check for overdue records. Frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from sidecar.core.lane.partition import LanePartition, Pause
from sidecar.core.lane.parts import LaneParts
from sidecar.core.record import Partition, Record

_TOPIC = attrgetter("source.topic")  # runs in C: thousands of records wait when the service is slow


class PartitionFacts(NamedTuple):
    """One partition of a lane.

    `level_delay`: ms; None on a main topic. `first`: the lowest offset that is not done. `next`: one more than the
    highest offset that was begun. `unsettled`: records whose decision is not in Kafka. `refused`: settled records whose
    copy Kafka refuses. `blocked`: why nothing of it is delivered, empty if it is. `suspect`: its records are delivered
    with care after crashes.
    """

    source: Partition
    level: str
    level_delay: int | None
    first: int
    next: int
    in_flight: int
    unsettled: int
    refused: int
    pause: Pause | None
    blocked: str
    closing: bool
    suspect: bool

    @property
    def front(self) -> int:
        """The first offset of which anything is still to come.

        A paused partition with nothing open was read up to the offset where it continues: below that are only
        transaction markers.
        """
        return max(self.first, self.pause.offset) if self.pause is not None and self.first == self.next else self.first


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """A lane at one moment."""

    partitions: Mapping[Partition, PartitionFacts]
    """The assigned partitions, by topic and number."""
    due: Mapping[Partition, int]
    """When the record of a level partition was due (epoch ms) that has waited in memory longest since then; only
    partitions that have such a record. It waits for a place in flight, or for a topic that accepts its copy."""
    refused: int
    """Settled records whose copy or event Kafka refuses."""
    records_lost: Mapping[str, int]
    """By topic: offsets that were gone from the log before they were read, or before they were done."""


def facts_of(parts: LaneParts, records_lost: Counter[str], steady: int) -> LaneFacts:
    """Return the facts of a lane at a steady time (ms)."""
    refused = parts.outbox.held_by_partition()
    partitions = {source: _facts(partition, refused[source]) for source, partition in sorted(parts.partitions.items())}
    return LaneFacts(partitions, _due(parts, steady), refused.total(), Counter(records_lost))


def waiting_by_topic(parts: LaneParts) -> Counter[str]:
    """Return how many records wait in memory, by the topic that they were read from."""
    counts = Counter(parts.delayed.count_by_topic())
    counts.update(map(_TOPIC, parts.ready))
    for partition in parts.partitions.values():
        counts[partition.source.topic] += len(partition.withheld)
    return counts


def _facts(partition: LanePartition, refused: int) -> PartitionFacts:
    suspect = partition.suspicion is not None and partition.suspicion.stage != "first"
    tracker = partition.tracker
    return PartitionFacts(
        partition.source,
        partition.level,
        partition.level_delay,
        tracker.first,
        tracker.next,
        partition.in_flight,
        partition.unsettled,
        refused,
        partition.paused,
        partition.blocked,
        partition.closing,
        suspect,
    )


def _due(parts: LaneParts, steady: int) -> dict[Partition, int]:
    levels = {source: partition for source, partition in parts.partitions.items() if partition.level_delay is not None}
    due: dict[Partition, int] = {}
    if not levels:
        return due
    refused: Iterable[Record] = (held.refusal.entry.record for held in parts.outbox.held.values())
    withheld = (partition.withheld for partition in levels.values())
    for record in chain(parts.ready, parts.delayed.over(steady), refused, *withheld):
        partition = levels.get(record.source)
        if partition is not None and record.again == 0:  # an attempt in place has no due time of its own
            at = partition.due(record)
            due[record.source] = min(at, due.get(record.source, at))
    return due
