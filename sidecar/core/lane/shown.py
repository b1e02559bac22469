"""What a lane shows of itself, for metrics, `/status`, the check for overdue records, and who gives up a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.facts import LaneFacts, facts_of, oldest_tried
from reconsume.sidecar.core.lane.long_waits import LongWaits
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import LanePartition, TriedRecord
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import Partition


class ShownLane:
    """The questions to one lane. None of them changes anything."""

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        ownership: Ownership,
        waiting: WaitingRecords,
        outbox: Outbox,
        commits: Commits,
        queues: LongWaits | None,
    ) -> None:
        self._partitions, self._ownership, self._waiting = partitions, ownership, waiting
        self._outbox, self._commits, self._queues = outbox, commits, queues

    def facts(self, steady_ms: int) -> LaneFacts:
        """Return what is true of the lane now, at a steady time (ms)."""
        queues = {} if self._queues is None else self._queues.facts()
        return facts_of(
            self._partitions,
            self._waiting,
            self._outbox,
            self._ownership.records_lost,
            steady_ms,
            queues,
            self._commits.in_flight,
        )

    def owned(self) -> Collection[Partition]:
        """Return the partitions that are owned, with those of queues."""
        return self._partitions.keys()

    def retried_in_place(self) -> int:
        """Return how many records are delivered again from memory, and hold back what follows. For any thread."""
        return sum(partition.retrying for partition in tuple(self._partitions.values()))

    def retried_heads(self) -> list[TriedRecord]:
        """Return the oldest record of each partition that is retried in place."""
        heads = (oldest_tried(partition, self._waiting) for partition in self._partitions.values())
        return [head for head in heads if head is not None]

    def has_open(self) -> bool:
        """Return whether a record of its partitions is not done, or waits to be read. What is parked does not count."""
        mains = (one for one in self._partitions.values() if one.under is None)
        if any(one.paused is not None or one.tracker.first != one.tracker.next for one in mains):
            return True
        return self._queues is not None and any(
            queue.blocked_keys > queue.parked_keys for queue in self._queues.facts().values()
        )

    def parked_keys(self) -> int:
        """Return how many keys are parked: their first records wait for an operator."""
        return 0 if self._queues is None else sum(facts.parked_keys for facts in self._queues.facts().values())

    def put_off(self, steady_ms: int) -> frozenset[tuple[Partition, int]]:
        """Return partition and offset of the records in memory whose time has not come, at a steady time (ms)."""
        return frozenset((record.source, record.offset) for record in self._waiting.put_off(steady_ms))

    def waiting_by_topic(self) -> Counter[str]:
        """Return how many records wait in memory, by the topic that they were read from."""
        return self._waiting.count_by_topic()

    def waiting(self) -> int:
        """Return how many records wait in memory for their time or for a place in flight."""
        return self._waiting.count

    def unsaved_at_loss(self) -> int:
        """Return how many records, at most, were answered but not in Kafka when their partition went."""
        return self._ownership.uncommitted_at_loss

    def unsaved(self) -> int:
        """Return the same, and those of the partitions that are still here."""
        return self.unsaved_at_loss() + sum(partition.unsaved for partition in self._partitions.values())
