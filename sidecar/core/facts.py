"""What a lane shows of itself: for metrics, `/status`, the ages of waiting records, and whoever releases a partition.

Why something waits is in `why.py`, for how long in `ages.py`; here are the counts, and all of it as one value.

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
    DELAYED,
    OUT,
    READY,
    STOPPED,
    Kind,
    PartitionState,
    Pause,
    TriedRecord,
)
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.core.why import PartitionWaits, Why
from reconsume.topics.in_place_told import is_blocked
from reconsume.topics.position_ranges import PartitionResets

if TYPE_CHECKING:
    from reconsume.sidecar.core.queues import LongWaits

QUIET_MS = 3_600_000
"""ms after a reset for which what it has delivered again triggers no alert."""


class ResetLeft(NamedTuple):
    """What of resets is still to be delivered of a main partition: at most so many `records`.

    `quiet_until_ms` (epoch ms): until then the delay of these, and of what comes behind them, counts as meant.
    """

    records: int
    quiet_until_ms: int


class RecordCounts(NamedTuple):
    """Records of one partition.

    `refused`: those whose copy Kafka refuses. `on_hold`: those that were read and that an operator's hold keeps back.
    `retried`: those that are retried in place; `blocking`: those of them that have failed so often, or for so long,
    that their key counts as blocked (contract 5.8). `waiting`: those that wait in memory, but not behind their key.
    """

    in_flight: int = 0
    refused: int = 0
    on_hold: int = 0
    retried: int = 0
    blocking: int = 0
    waiting: int = 0


class PartitionFacts(NamedTuple):
    """One partition of a lane.

    `first`: the lowest offset that is not done. `waits`: what of it waits, and why. `refusal`: what Kafka refuses, in
    its words; empty if nothing. `tried`: the oldest record that is retried in place; None if none is. `reset_left`:
    None if all ranges of resets are done.
    """

    source: Partition
    kind: Kind
    first: int
    waits: PartitionWaits
    counts: RecordCounts = RecordCounts()
    pause: Pause | None = None
    refusal: str = ""
    tried: TriedRecord | None = None
    reset_left: ResetLeft | None = None

    @property
    def is_main(self) -> bool:
        """Whether it is of a main topic."""
        return self.kind.delay_ms is None


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """A lane at one moment."""

    partitions: Mapping[Partition, PartitionFacts]
    """The assigned partitions, by topic and number."""
    records_lost: Mapping[str, int] = field(default_factory=dict)
    """By topic: offsets that were gone from the log before they were read, or before they were done."""
    queues: Mapping[Partition, QueueFacts] = field(default_factory=dict)
    """What waits in the queues of the main partitions; empty in a lane without queues."""
    released_since: Mapping[Partition, int] = field(default_factory=dict)
    """Since when (steady ms) the partitions are being given up that another instance gets."""


class HandOver(NamedTuple):
    """Partitions that a rebalance takes away, and what they wait for (contract 9.1).

    `since_ms`: epoch ms. `in_flight`: their records that are out. `oldest_id`: the id of the oldest of them; None if
    none is out, and only the last commit is awaited.
    """

    since_ms: int
    in_flight: int
    oldest_id: str | None


def reset_left_of(resets: PartitionResets, first: int) -> ResetLeft | None:
    """Return what is left of the ranges of a partition whose lowest open offset is `first`; None if nothing is."""
    records = sum(end - max(start, first) for start, end, _ in resets.segments() if end > first)
    begun_ms = max((one.at for one in resets.ranges if one.end > first), default=0)
    return ResetLeft(records, begun_ms + QUIET_MS) if records else None


class ShownLane:
    """The questions to one lane."""

    def __init__(self, machines: Machines, ownership: Ownership, queues: LongWaits | None, why: Why) -> None:
        self._machines, self._ownership, self._queues, self._why = machines, ownership, queues, why
        self._partitions = machines.partitions

    def unclean_partitions(self) -> Mapping[Partition, int]:
        """Return those whose last commits Kafka did not take, for a restart in place (`SuspectGate`)."""
        suspects = self._ownership.suspects
        return {} if suspects is None else suspects.unclean_partitions()

    # --- all of it at one moment ------------------------------------------------------------------------------------

    def facts(self, now: Now) -> LaneFacts:
        """Return what is true of the lane now."""
        queues = {} if self._queues is None else self._queues.facts()
        refused = refused_by_partition(self._machines.outbox)
        partitions = {
            source: self._facts_of(partition, refused[source], queues, now)
            for source, partition in sorted(self._partitions.items())
        }
        lost, released = Counter(self._ownership.records_lost), self._ownership.released_since()
        return LaneFacts(partitions, lost, queues, released)

    def _facts_of(
        self, partition: PartitionState, refused: int, queues: Mapping[Partition, QueueFacts], now: Now
    ) -> PartitionFacts:
        offsets, main = partition.offsets, partition.kind.under
        return PartitionFacts(
            partition.source,
            partition.kind,
            offsets.first,
            self._why.waits_of(partition, None if main is None else queues.get(main), now),
            RecordCounts(
                partition.in_flight,
                refused,
                sum(bool(entry.hold) for entry in offsets.entries.values()),
                offsets.tried,
                len(list(blocking_records(partition, now.wall_ms))),
                offsets.counts[READY] + offsets.counts[DELAYED] + offsets.counts[STOPPED],
            ),
            partition.paused,
            partition.blocked,
            next(tried_records(partition), None),
            None if partition.commit.resets is None else reset_left_of(partition.commit.resets, offsets.first),
        )

    def hand_over(self, now: Now) -> HandOver | None:
        """Return what a rebalance waits for here; None if no partition is being given up."""
        since = self._ownership.released_since()
        if not since:
            return None
        moving = [self._partitions[source] for source in since]
        out = [
            entry.record
            for partition in moving
            for entry in partition.offsets.entries.values()
            if entry.where is OUT and entry.record is not None
        ]
        oldest = min(out, key=lambda record: record.timestamp, default=None)
        since_ms = now.wall_ms - (now.steady_ms - min(since.values()))
        return HandOver(since_ms, len(out), None if oldest is None else oldest.id)

    # --- single questions -------------------------------------------------------------------------------------------

    def owned(self) -> Collection[Partition]:
        """Return the partitions that are owned, with those of queues."""
        return self._partitions.keys()

    def retried_in_place(self) -> int:
        """Return how many records are delivered again from memory, and hold back what follows. For any thread."""
        return sum(partition.offsets.tried for partition in tuple(self._partitions.values()))

    def blocking_records(self, now_ms: int) -> list[TriedRecord]:
        """Return the records that are retried in place and block what follows them, at `now_ms` (epoch ms)."""
        return [tried for partition in self._partitions.values() for tried in blocking_records(partition, now_ms)]

    def queued_keys(self) -> int:
        """Return how many keys have a record that waits in a queue topic."""
        return 0 if self._queues is None else sum(facts.blocked_keys for facts in self._queues.facts().values())

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


def tried_records(partition: PartitionState) -> Iterator[TriedRecord]:
    """Yield the records of a partition that are retried in place, by offset."""
    if partition.offsets.tried:
        for entry in partition.offsets.entries.values():
            if entry.tried is not None:
                yield entry.tried._replace(is_held=bool(entry.hold) and entry.where is STOPPED)


def blocking_records(partition: PartitionState, now_ms: int) -> Iterator[TriedRecord]:
    """Yield those of them that block their key at `now_ms` (epoch ms)."""
    for tried in tried_records(partition):
        if is_blocked(tried.record.again, tried.record.failed_at_ms, now_ms):
            yield tried
