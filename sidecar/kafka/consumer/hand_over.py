"""Collect the records of one hand-over, partition by partition, until they are many or heavy.

A rebalance may happen meanwhile: the client calls back while it is asked for more messages. So what was collected for a
partition counts only if the partition is still ours, under the same epoch, when it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, Message

from sidecar.core.lane.partition import FetchedRecords
from sidecar.kafka.consumer.batches import HEAVY, Batches
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition
from sidecar.kafka.messages import Reading, to_record

Learn: TypeAlias = Callable[[OwnedPartition, int], bool]
"""A function that reports where a partition starts, at the offset of its first message. False: not known yet."""


class HandedOver(NamedTuple):
    """The records of one hand-over, and the errors that came with them.

    `messages`: how many messages were read. `weight`: of all records, in bytes.
    """

    runs: list[FetchedRecords]
    errors: list[Message]
    messages: int
    weight: int


class HandOver:
    """The hand-overs of one consumer. All calls come from its thread.

    `slots`: the partitions that the consumer owns.
    """

    def __init__(self, slots: dict[Key, OwnedPartition], learn: Learn, reading: Reading | None) -> None:
        self._slots, self._learn, self._reading = slots, learn, reading
        self._batches = Batches()
        self._ages: list[tuple[int, int] | None] = []
        """Of each message that the last hand-over has left: epoch and seek count of its partition when it came."""

    def take(self, consumer: Consumer, wait: float, levels: Collection[str]) -> HandedOver:
        """Return the next hand-over; an empty one if nothing comes within `wait` seconds.

        `levels`: the topics of which each end of the log counts.
        """
        if self._batches.left:
            return self.collect(self._still_wanted(), levels)
        found = self.collect(self._batches.take(consumer, wait), levels)
        if found.messages:
            self._batches.ended(found.messages, found.weight)
            self._ages = [self._age(message) for message in self._batches.left]
        return found

    def put_off(self, messages: Sequence[Message]) -> bool:
        """Leave messages for a later hand-over, behind those that are left; return False if none are."""
        if not self._batches.left:
            return False
        for message in messages:
            self._batches.left.insert(0, message)
            self._ages.insert(0, self._age(message))
        return True

    def collect(self, messages: Iterable[Message], levels: Collection[str]) -> HandedOver:
        """Return these messages as a hand-over, up to the one with which it is HEAVY."""
        runs, errors = dict[Key, FetchedRecords](), list[Message]()
        unknown: set[Key] = set()  # partitions that start again at their stored offset: no later record may come first
        reading, slots = self._reading, self._slots
        count = weight = 0
        for message in messages:
            count += 1
            key = (message.topic(), message.partition())
            slot = slots.get(key)
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                errors.append(message)
            elif slot is not None and key not in unknown:
                if slot.awaits is not None and not self._learn(slot, message.offset() or 0):
                    unknown.add(key)
                    continue
                if error is not None and key[0] not in levels and slot.knows_end(message.offset()):
                    continue
                run = runs.get(key)
                if run is None or run.epoch != slot.epoch:
                    run = runs[key] = FetchedRecords(slot.partition, slot.epoch, slot.seek_count, [])
                    slot.sought = None
                if error is not None:
                    runs[key] = run._replace(end=message.offset())
                    continue
                record = to_record(message, slot.partition, slot.epoch, reading)
                slot.last = record.offset
                run.records.append(record)
                weight += record.weight
                if weight >= HEAVY:
                    break
        return HandedOver([run for run in runs.values() if self._is_ours(run)], errors, count, weight)

    def _is_ours(self, run: FetchedRecords) -> bool:
        slot = self._slots.get(run.partition)
        return slot is not None and slot.epoch == run.epoch

    def _still_wanted(self) -> Iterator[Message]:
        """Yield what is left, without messages that were fetched before a seek or under another epoch."""
        left, ages = self._batches.left, self._ages
        while left:
            message, age = left.pop(), ages.pop()
            if self._age(message) == age:
                yield message

    def _age(self, message: Message) -> tuple[int, int] | None:
        slot = self._slots.get((message.topic(), message.partition()))
        return None if slot is None else (slot.epoch, slot.seek_count)
