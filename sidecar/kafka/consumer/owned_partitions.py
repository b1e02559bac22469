"""The partitions that a consumer owns: at which offset each starts, and since when the lane knows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, TopicPartition

from sidecar.core.lane.partition import AssignedPartition
from sidecar.core.record import Partition
from sidecar.kafka.consumer.client_assignment import ClientAssignment
from sidecar.kafka.consumer.listeners import AssignmentListener
from sidecar.kafka.consumer.log_checks import untouched
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition
from sidecar.kafka.consumer.start_offsets import Start, Starts


class OwnedPartitions:
    """The table of owned partitions; used on the consumer's thread."""

    def __init__(self, listener: AssignmentListener, starts: Starts) -> None:
        self.slots: dict[Key, OwnedPartition] = {}
        self.client = ClientAssignment()
        self.starts = starts
        self.all_paused = False
        """Whether nothing is fetched, as the lane is full: a partition that is assigned meanwhile is paused too."""
        self._listener = listener

    def learn(self, consumer: Consumer, slot: OwnedPartition, offset: int) -> bool:
        """Report to the lane where a partition starts, at its first message, which has `offset`.

        False: Kafka does not say it yet, or the partition starts elsewhere. It is fetched again.
        """
        start = slot.awaits
        if start is None:
            return True
        if start.offset == OFFSET_STORED:
            self._start_others(consumer)
        if start.offset not in (OFFSET_BEGINNING, OFFSET_END):
            (start,) = self.starts.find(consumer, [slot.partition])
            # Nobody knows yet, or the client began at a place in a former log of that name.
            if start.progress is None or start.offset != offset:
                self._anew(consumer, [start])
                self._begin([start])
                return False
        self._begin([start if start.progress else start._replace(progress=untouched(offset, start.width))])
        return True

    def request_offsets(self, consumer: Consumer, now: float) -> None:
        """Make the client request the next offset that is not known yet. `now`: monotonic seconds."""
        if (source := self.client.next_turn(consumer, now)) is not None:
            self._pause_again(consumer, [source])

    def without_offset(self, consumer: Consumer, slot: OwnedPartition) -> None:
        """Find out where a partition starts that has no committed offset, by the client's report."""
        assert slot.awaits is not None
        told = self.client.has_no_offset(slot.partition)
        starts = self.starts.find(consumer, [slot.partition]) if told else [slot.awaits]
        self._anew(consumer, starts)
        self._begin(starts)
        if told:
            self._start_others(consumer)

    def _start_others(self, consumer: Consumer) -> None:
        """Start what the end of the same transaction has set free: the offsets of a dead pod come back together."""
        if waiting := list(self.client.waiting):
            starts = self.starts.find(consumer, waiting, patient=False)
            known = [start for start in starts if start.offset != OFFSET_STORED]
            self._anew(consumer, known)
            self._begin(known)

    def _anew(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Make the client fetch partitions from other offsets."""
        self.client.give_anew(consumer, starts)
        self._pause_again(consumer, [start.partition for start in starts])

    def _pause_again(self, consumer: Consumer, sources: Sequence[Partition]) -> None:
        """Pause those partitions that are to be paused, and no other."""
        # A pause outlives `incremental_unassign` (librdkafka 2.16): who was paused before would never be fetched again.
        consumer.resume([TopicPartition(*source) for source in sources])
        paused = [source for source in sources if self.all_paused or self.slots[source].paused]
        consumer.pause([TopicPartition(*source) for source in paused])

    def _begin(self, starts: Collection[Start]) -> None:
        """Report to the lane which partitions start where.

        Call this after the membership is taken: the lane may commit at once.
        """
        grants = []
        for start in starts:
            slot = self.slots[start.partition]
            slot.awaits = start if start.progress is None else None
            if start.progress is not None:
                slot.last, slot.last_at = start.progress.next - 1, start.progress.last_at or None
                slot.sought = start.progress.next
                self.client.started(start.partition)
                grants.append(AssignedPartition(start.partition, slot.epoch, start.progress))
        if grants:
            self._listener.assigned(grants)
