"""What is true of a lane at one moment, for metrics, `/status` and the check for overdue records. Frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.partition import Because, LanePartition, Pause, TriedRecord
from reconsume.sidecar.core.lane.queue_facts import QueueFacts
from reconsume.sidecar.core.lane.suspicion import Stage
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import Partition
from reconsume.topics.attempt import retry_state_of


class PartitionFacts(NamedTuple):
    """One partition of a lane.

    `level_delay_ms`: ms; None on a main topic. `first`: the lowest offset that is not done. `next`: one more than the
    highest offset that was begun. `unsettled`: records whose decision is not in Kafka. `refused`: settled records whose
    copy Kafka refuses. `blocked`: why nothing of it is delivered, empty if it is. `suspect`: its records are delivered
    with care after crashes. `on_hold`: records that were read and that an operator's hold keeps back. `retrying`:
    records that are retried in place.

    `oldest`: of a main partition, the lowest offset that was read, is not done, and is neither held nor in its first
    delivery; None if there is none. `oldest_at_ms`: its timestamp (epoch ms), 0 if it is not in memory. `under`: the
    main partition of a queue. `head_due_ms`: the steady time (ms) at which the oldest record of a queue was due that
    could go out and did not; None if there is none. `oldest_held`: of a main partition, the lowest offset that an
    operator's hold keeps back; None if there is none. `held_heads`: first records of a queue that an operator holds.
    `tried`: the oldest record that is retried in place; None if there is none.
    """

    source: Partition
    level: str
    level_delay_ms: int | None
    first: int
    next: int
    in_flight: int
    unsettled: int
    refused: int
    pause: Pause | None
    blocked: str
    closing: bool
    suspect: bool
    on_hold: int = 0
    epoch: int = 0
    retrying: int = 0
    oldest: int | None = None
    oldest_at_ms: int = 0
    under: Partition | None = None
    head_due_ms: int | None = None
    oldest_held: int | None = None
    held_heads: int = 0
    tried: TriedRecord | None = None

    @property
    def is_covered(self) -> bool:
        """Whether an operator holds all that is still to be read of it."""
        return self.pause is not None and self.pause.because is Because.HELD

    @property
    def is_held(self) -> bool:
        """Whether an operator keeps something of it back, so that it is late by intent."""
        return self.on_hold > 0 or self.is_covered

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
    queues: Mapping[Partition, QueueFacts] = field(default_factory=dict)
    """What waits in the queues of the main partitions; empty in a lane without queues."""


def facts_of(
    partitions: Mapping[Partition, LanePartition],
    waiting: WaitingRecords,
    outbox: Outbox,
    records_lost: Counter[str],
    steady_ms: int,
    queues: Mapping[Partition, QueueFacts],
    batch: CommitBatch | None = None,
) -> LaneFacts:
    """Return the facts of a lane at a steady time (ms). `batch`: the transaction in flight."""
    refused, oldest = outbox.refused_by_partition(), _oldest(partitions, waiting, outbox, batch)
    held = {source: records[0].offset for source, records in waiting.held.items()}
    facts = {
        source: _facts(
            partition,
            refused[source],
            oldest.get(source),
            held.get(source),
            oldest_tried(partition, waiting),
            queues,
            steady_ms,
        )
        for source, partition in sorted(partitions.items())
    }
    due = _due(partitions, waiting, outbox, steady_ms)
    return LaneFacts(facts, due, refused.total(), Counter(records_lost), queues)


def _facts(
    partition: LanePartition,
    refused: int,
    oldest: tuple[int, int] | None,
    held_in_memory: int | None,
    tried: TriedRecord | None,
    queues: Mapping[Partition, QueueFacts],
    steady_ms: int,
) -> PartitionFacts:
    queue = None if partition.under is None else queues.get(partition.under)
    due_ms = None if queue is None or queue.due_ms >= steady_ms else queue.due_ms
    suspect = partition.suspicion is not None and partition.suspicion.stage is not Stage.FRESH
    tracker = partition.tracker
    held = [*partition.held, *(() if held_in_memory is None else (held_in_memory,))]
    return PartitionFacts(
        partition.source,
        partition.level,
        partition.level_delay_ms,
        tracker.first,
        tracker.next,
        partition.in_flight,
        partition.unsettled,
        refused,
        partition.paused,
        partition.blocked,
        partition.closing,
        suspect,
        len(partition.held) + partition.held_in_memory,
        partition.epoch,
        partition.retrying,
        None if oldest is None else oldest[0],
        0 if oldest is None else oldest[1],
        partition.under,
        due_ms,
        min(held, default=None) if partition.level_delay_ms is None else None,
        partition.held_heads,
        tried,
    )


def oldest_tried(partition: LanePartition, waiting: WaitingRecords) -> TriedRecord | None:
    """Return the record of a partition with the lowest offset that is retried in place; None if none is."""
    if not partition.tried:
        return None
    first = min(partition.tried)
    is_held = any(record.offset == first for record in waiting.held.get(partition.source, ()))
    return partition.tried[first]._replace(is_held=is_held)


def _oldest(
    partitions: Mapping[Partition, LanePartition],
    waiting: WaitingRecords,
    outbox: Outbox,
    batch: CommitBatch | None,
) -> dict[Partition, tuple[int, int]]:
    """Return the lowest offset of each main partition that is not done, held, behind a held one, or in its first
    delivery, and its timestamp (epoch ms; 0 if the record is not in memory)."""
    mains = {source: partition for source, partition in partitions.items() if partition.level_delay_ms is None}
    oldest: dict[Partition, tuple[int, int]] = {}
    if not mains:
        return oldest
    settled = [outbox.entries(batch), () if batch is None else batch.entries]
    for record in chain(waiting.not_held(), (entry.record for entry in chain(*settled))):
        source = record.source
        if source in mains and (source not in oldest or record.offset < oldest[source][0]):
            oldest[source] = record.offset, record.timestamp
    for source, partition in mains.items():
        elsewhere = set(partition.tracker.dropped)
        if partition.tried:  # one that was tried before may be in flight again
            elsewhere |= partition.tried.keys() - {record.offset for record in waiting.held.get(source, ())}
        first = min(elsewhere, default=None)
        if first is not None and (source not in oldest or first < oldest[source][0]):
            tried = partition.tried.get(first)
            oldest[source] = first, 0 if tried is None else tried.record.timestamp
    return oldest


def _due(
    partitions: Mapping[Partition, LanePartition], waiting: WaitingRecords, outbox: Outbox, steady_ms: int
) -> dict[Partition, int]:
    levels = {source: partition for source, partition in partitions.items() if partition.level_delay_ms is not None}
    due: dict[Partition, int] = {}
    if not levels:
        return due
    refused = (one.refusal.entry.record for one in outbox.refused.values())
    for record in chain(waiting.overdue(steady_ms), refused):
        partition = levels.get(record.source)
        # An attempt in place has no due time of its own, and neither has what came behind another.
        if partition is not None and record.again == 0 and not retry_state_of(record).behind:
            at_ms = partition.due(record)
            due[record.source] = min(at_ms, due.get(record.source, at_ms))
    return due
