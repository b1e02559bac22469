"""What a lane shows of itself: for metrics, `/status`, the check for overdue records, and who gives up a partition.

Everything here is a question to the maps of the partitions (`partition.py`), and changes nothing. The values are
frozen, so they may go to other threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.outbox import refused_by_partition
from reconsume.sidecar.core.owned_queue import QueueFacts
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.partition import (
    BEHIND,
    CALLED_OFF,
    DELAYED,
    OUT,
    READY,
    SETTLED,
    STOPPED,
    Because,
    Entry,
    PartitionState,
    Pause,
    TriedRecord,
)
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.sidecar.core.suspects import Stage
from reconsume.topics.attempt import retry_state_of

if TYPE_CHECKING:
    from reconsume.sidecar.core.queues import LongWaits


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


class ShownLane:
    """The questions to one lane."""

    def __init__(self, machines: Machines, ownership: Ownership, queues: LongWaits | None) -> None:
        self._machines, self._ownership, self._queues = machines, ownership, queues
        self._partitions = machines.partitions

    # --- all of it at one moment ------------------------------------------------------------------------------------

    def facts(self, steady_ms: int) -> LaneFacts:
        """Return what is true of the lane now, at a steady time (ms)."""
        queues = {} if self._queues is None else self._queues.facts()
        refused = refused_by_partition(self._machines.outbox)
        partitions = {
            source: self._facts_of(partition, refused[source], queues, steady_ms)
            for source, partition in sorted(self._partitions.items())
        }
        due, lost = self._due(steady_ms), Counter(self._ownership.records_lost)
        return LaneFacts(partitions, due, refused.total(), lost, queues)

    def _facts_of(
        self, partition: PartitionState, refused: int, queues: Mapping[Partition, QueueFacts], steady_ms: int
    ) -> PartitionFacts:
        offsets, kind = partition.offsets, partition.kind
        is_main = kind.delay_ms is None
        queue = None if kind.under is None else queues.get(kind.under)
        due_ms = None if queue is None or queue.due_ms >= steady_ms else queue.due_ms
        held = [entry.offset for entry in offsets.entries.values() if entry.hold]
        oldest = self._oldest_undone(partition) if is_main else None
        return PartitionFacts(
            partition.source,
            kind.level,
            kind.delay_ms,
            offsets.first,
            offsets.next,
            partition.in_flight,
            offsets.counts[SETTLED],
            refused,
            partition.paused,
            partition.blocked,
            partition.closing,
            partition.suspicion is not None and partition.suspicion.stage is not Stage.FRESH,
            len(held),
            partition.epoch,
            offsets.tried,
            None if oldest is None else oldest.offset,
            0 if oldest is None or oldest.record is None else oldest.record.timestamp,
            kind.under,
            due_ms,
            min(held, default=None) if is_main else None,
            0 if self._queues is None or kind.under is None else self._queues.held_heads(partition),
            oldest_tried(partition),
        )

    def _oldest_undone(self, partition: PartitionState) -> Entry | None:
        """Return the lowest entry of a main partition that is not held, behind a held one, or in its first delivery."""
        behind_held: set[int] | None = None
        for entry in partition.offsets.entries.values():
            if entry.hold or entry.where is CALLED_OFF or (entry.where is OUT and entry.tried is None):
                continue
            if entry.where is BEHIND:
                if behind_held is None:
                    waiting = self._machines.waiting.not_held(partition)
                    behind_held = set(partition.offsets.entries) - {record.offset for record in waiting}
                if entry.offset in behind_held:
                    continue
            return entry
        return None

    def _due(self, steady_ms: int) -> dict[Partition, int]:
        """Return when the record of each level was due (epoch ms) that has waited in memory longest since then."""
        due: dict[Partition, int] = {}
        for source, partition in self._partitions.items():
            if partition.kind.delay_ms is None:
                continue
            for record in self._overdue(partition, steady_ms):
                # An attempt in place has no due time of its own, and neither has what came behind another.
                if record.is_fresh_here and not retry_state_of(record).behind:
                    due[source] = min(partition.due_ms(record), due.get(source, NEVER))
        return due

    def _overdue(self, partition: PartitionState, steady_ms: int) -> Iterator[Record]:
        """Yield the records of a partition that could be delivered, or written, and wait all the same."""
        refused = self._machines.outbox.refused
        for entry in partition.offsets.entries.values():
            if (record := entry.record) is None or entry.hold:
                continue
            is_late = entry.where is DELAYED and entry.until_ms <= steady_ms
            is_refused = entry.where is SETTLED and (partition.source, entry.offset) in refused
            if is_late or is_refused or entry.where in (READY, STOPPED):
                yield record

    # --- single questions -------------------------------------------------------------------------------------------

    def owned(self) -> Collection[Partition]:
        """Return the partitions that are owned, with those of queues."""
        return self._partitions.keys()

    def retried_in_place(self) -> int:
        """Return how many records are delivered again from memory, and hold back what follows. For any thread."""
        return sum(partition.offsets.tried for partition in tuple(self._partitions.values()))

    def retried_heads(self) -> list[TriedRecord]:
        """Return the oldest record of each partition that is retried in place."""
        heads = (oldest_tried(partition) for partition in self._partitions.values())
        return [head for head in heads if head is not None]

    def has_open(self) -> bool:
        """Return whether a record of its partitions is not done, or waits to be read. What is parked does not count."""
        mains = (one for one in self._partitions.values() if one.kind.under is None)
        if any(one.paused is not None or one.offsets.entries for one in mains):
            return True
        return self._queues is not None and any(
            queue.blocked_keys > queue.parked_keys for queue in self._queues.facts().values()
        )

    def parked_keys(self) -> int:
        """Return how many keys are parked: their first records wait for an operator."""
        return 0 if self._queues is None else sum(facts.parked_keys for facts in self._queues.facts().values())

    def put_off(self, steady_ms: int) -> frozenset[tuple[Partition, int]]:
        """Return partition and offset of the records in memory whose time has not come, at a steady time (ms)."""
        return frozenset(
            (source, entry.offset)
            for source, partition in self._partitions.items()
            for entry in partition.offsets.entries.values()
            if entry.where is DELAYED and entry.until_ms > steady_ms
        )

    def waiting_by_topic(self) -> Counter[str]:
        """Return how many records wait in memory, by the topic that they were read from; without those behind their
        key."""
        counts = Counter[str]()
        for source, partition in self._partitions.items():
            in_places = partition.offsets.counts
            if waits := in_places[READY] + in_places[DELAYED] + in_places[STOPPED]:
                counts[source.topic] += waits
        return counts

    def waiting(self) -> int:
        """Return how many records wait in memory for their time or for a place in flight."""
        counts = (partition.offsets.counts for partition in tuple(self._partitions.values()))
        return sum(by_where[READY] + by_where[DELAYED] for by_where in counts)

    def unsaved_at_loss(self) -> int:
        """Return how many records, at most, were answered but not in Kafka when their partition went."""
        return self._ownership.uncommitted_at_loss

    def unsaved(self) -> int:
        """Return the same, and those of the partitions that are still here."""
        return self.unsaved_at_loss() + sum(partition.unsaved for partition in self._partitions.values())


def oldest_tried(partition: PartitionState) -> TriedRecord | None:
    """Return the record of a partition with the lowest offset that is retried in place; None if none is."""
    if not partition.offsets.tried:
        return None
    for entry in partition.offsets.entries.values():
        if entry.tried is not None:
            return entry.tried._replace(is_held=bool(entry.hold) and entry.where is STOPPED)
    return None
