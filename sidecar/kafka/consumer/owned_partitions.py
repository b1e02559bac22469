"""The partitions that a consumer owns: at which offset each starts, and since when the lane knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, TopicPartition

from sidecar.core.lane.partition import AssignedPartition
from sidecar.core.record import Partition
from sidecar.kafka.consumer.client_assignment import ClientAssignment
from sidecar.kafka.consumer.listeners import AssignmentListener
from sidecar.kafka.consumer.log_checks import untouched
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition
from sidecar.kafka.consumer.start_offsets import Start, Starts

LOG_EDGES = (OFFSET_BEGINNING, OFFSET_END)
"""Where a partition starts of which the group has read nothing: its first message says at which offset that is."""


class OwnedPartitions:
    """The table of owned partitions; used on the consumer's thread."""

    def __init__(self, listener: AssignmentListener, starts: Starts) -> None:
        self.slots: dict[Key, OwnedPartition] = {}
        self.awaited: set[Partition] = set()
        """The partitions whose start the lane does not know before their first message."""
        self.put_off: set[Partition] = set()
        """The partitions that are to be looked up after the callback: in it not every request may be made."""
        self.client = ClientAssignment()
        self.starts = starts
        self.all_paused = False
        """Whether nothing is fetched, as the lane is full: a partition that is assigned meanwhile is paused too."""
        self._listener = listener

    def learn(self, consumer: Consumer, firsts: Mapping[Partition, int]) -> None:
        """Report to the lane where awaited partitions start, at their first messages, which have these offsets.

        All of them are fetched again: from their first messages, or from where they start by what Kafka says now. The
        requests are for all of these partitions together, and for others that wait: nothing is polled meanwhile.
        """
        slots = [slot for source in firsts if (slot := self.slots.get(source)) is not None]
        starts = [slot.awaits for slot in slots if slot.awaits is not None]
        self.starts.leaders.reached(firsts)
        if any(start.offset == OFFSET_STORED for start in starts):
            self._start_others(consumer)
        known = [_at(start, firsts[start.partition]) for start in starts if start.offset in LOG_EDGES]
        asked = {start.partition for start in starts if start.offset not in LOG_EDGES} | self._at_numbers()
        # Of some Kafka may not say it yet, or the client began at a place in a former log of that name.
        found = self.starts.find(consumer, list(asked)) if asked else []
        self._anew(consumer, [*known, *found])
        self._begin([*known, *found])

    def _at_numbers(self) -> set[Partition]:
        """Return the awaited partitions that the client reads from an offset which is only to be checked."""
        waits = {source: slot.awaits for source in self.awaited if (slot := self.slots.get(source)) is not None}
        return {source for source, start in waits.items() if start is not None and start.offset >= 0}

    def request_offsets(self, consumer: Consumer, now: float) -> None:
        """Find out where partitions start that the callback has put off, and make the client request the next offset.

        `now`: monotonic seconds.
        """
        if self.put_off:
            self._start_put_off(consumer)
        if (source := self.client.next_turn(consumer, now)) is not None:
            self._pause_again(consumer, [source])

    def without_offset(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        """Find out where awaited partitions start that have no committed offset, by the client's reports."""
        if not sources:
            return
        told = [source for source in sources if self.client.has_no_offset(source)]
        awaits = [self.slots[source].awaits for source in sources if source not in told]
        starts = [start for start in awaits if start is not None] + (self.starts.find(consumer, told) if told else [])
        self._anew(consumer, starts)
        self._begin(starts)
        if told:
            self._start_others(consumer)

    def _start_put_off(self, consumer: Consumer) -> None:
        awaits = [start for source in self.put_off if (start := self.slots[source].awaits) is not None]
        self.put_off.clear()
        given = {start.partition: start.offset for start in awaits}
        stored = [source for source, offset in given.items() if offset == OFFSET_STORED]
        others = [source for source, offset in given.items() if offset != OFFSET_STORED]
        # An open transaction may hold the stored offsets back. The callback has waited for it, and the client goes on.
        starts = self.starts.find(consumer, others) + self.starts.find(consumer, stored, patient=False)
        known = [start for start in starts if start.progress is not None]
        self._anew(consumer, [start for start in known if start.offset != given[start.partition]])
        self._begin(known)

    def _start_others(self, consumer: Consumer) -> None:
        """Start what the end of the same transaction has set free: the offsets of a dead pod come back together."""
        if waiting := list(self.client.waiting):
            starts = self.starts.find(consumer, waiting, patient=False)
            known = [start for start in starts if start.offset != OFFSET_STORED]
            self._anew(consumer, known)
            self._begin(known)

    def _anew(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Make the client fetch partitions from other offsets."""
        if not starts:
            return
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
            if start.progress is None:
                self.awaited.add(start.partition)
            else:
                self.awaited.discard(start.partition)
                slot.last, slot.last_at = start.progress.next - 1, start.progress.last_at or None
                slot.sought = start.progress.next
                self.client.started(start.partition)
                grants.append(AssignedPartition(start.partition, slot.epoch, start.progress))
        if grants:
            self._listener.assigned(grants)


def _at(start: Start, offset: int) -> Start:
    """Return the start of a partition that begins at an edge of its log, by the offset of the first message there."""
    return start._replace(offset=offset, progress=untouched(offset, start.width))
