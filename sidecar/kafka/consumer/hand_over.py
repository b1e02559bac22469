"""Collect the records of one hand-over, partition by partition, until they are many or heavy.

Of a partition whose start is not known yet, only the offset of the first message is kept. The start is found out for
all such partitions together, and they are fetched again: nothing polls meanwhile, and their messages may be heavy.

Where small fetches are made, a gap in the offsets of a main topic ends what is taken of the partition: transactions may
have left it, and small fetches may bring their aborted records (`client_config.WHOLE`).

A rebalance may happen meanwhile: the client calls back while it is asked for more messages. So what was collected for a
partition counts only if the partition is still ours, under the same epoch, when it is handed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message

from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.batches import HEAVY, MOST_TOGETHER, Batches
from reconsume.sidecar.kafka.consumer.lost_positions import is_end
from reconsume.sidecar.kafka.consumer.owned_partition import Key, OwnedPartition
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.scan import TOGETHER

FORGOTTEN = (-1, -1)
"""The age of a message that must not be handed over: no epoch is negative."""


class HandedOver(NamedTuple):
    """The records of one hand-over, and the errors that came with them.

    `firsts`: the offset of the first message of each partition whose start is not known yet. `messages`: how many
    messages were read. `weight`: of all records, in bytes. `gap`: a partition in which offsets are missing.
    """

    runs: list[FetchedRecords]
    firsts: dict[Partition, int]
    errors: list[tuple[Message, KafkaError]]
    messages: int
    weight: int
    gap: Partition | None = None


class HandOver:
    """The hand-overs of one consumer. All calls come from its thread.

    `heavy`: bytes (`Record.weight`) after which a hand-over ends. `gaps`: whether gaps in the
    offsets are taken, as fetches are large enough.
    """

    def __init__(
        self,
        owned_partitions: dict[Key, OwnedPartition],
        reading: Reading | None,
        heavy: int = HEAVY,
        *,
        gaps: bool = True,
    ) -> None:
        self.gaps = gaps
        self._owned_partitions, self._reading, self._heavy = owned_partitions, reading, heavy
        # Two lanes may meet their worst records at once: the one that reads headers itself is not the fast one.
        self._batches = Batches(most=MOST_TOGETHER if reading is None else TOGETHER)
        self._ages: list[tuple[int, int] | None] = []
        """Of each message that the last hand-over has left: epoch and seek count of its partition when it came."""

    def next_hand_over(self, consumer: Consumer, wait: float, levels: Collection[str]) -> HandedOver:
        """Return the next hand-over; an empty one if nothing comes within `wait` seconds.

        `levels`: the topics of which each end of the log counts.
        """
        if self._batches.left:
            return self.collect(self._still_wanted(), levels)
        records = self.collect(self._batches.next_batch(consumer, wait), levels)
        if records.messages:
            self._batches.ended(records.messages, records.weight)
            self._ages = [self._age(message) for message in self._batches.left]
        return records

    def put_off(self, messages: Sequence[Message]) -> bool:
        """Leave messages for a later hand-over, behind those that are left; return False if none are."""
        if not self._batches.left:
            return False
        for message in messages:
            self._batches.left.insert(0, message)
            self._ages.insert(0, self._age(message))
        return True

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what is left of partitions that are fetched again."""
        for number, message in enumerate(self._batches.left):
            if (message.topic(), message.partition()) in partitions:
                self._ages[number] = FORGOTTEN

    def collect(self, messages: Iterable[Message], levels: Collection[str]) -> HandedOver:
        """Return these messages as a hand-over, up to the one with which it is heavy, and note each last one."""
        runs, errors, firsts = dict[Key, FetchedRecords](), list[tuple[Message, KafkaError]](), dict[Partition, int]()
        reading, owned_partitions, gaps = self._reading, self._owned_partitions, self.gaps
        count = weight = 0
        gap: Partition | None = None
        for message in messages:
            count += 1
            key = (message.topic(), message.partition())
            owned = owned_partitions.get(key)
            error = message.error()
            if error is not None and not is_end(error):
                errors.append((message, error))
            elif owned is not None and owned.awaits is not None:
                firsts.setdefault(owned.partition, message.offset() or 0)
                owned.arrivals += 1
            elif owned is not None and not gaps and owned.is_behind_gap(message.offset() or 0):
                gap = owned.partition
            elif owned is not None and error is not None:
                _take_end(runs, key, owned, message.offset() or 0, told=key[0] in levels)
            elif owned is not None:
                run, epoch = runs.get(key), owned.wanted.epoch
                if run is None or run.epoch != epoch:
                    run = _begin_run(runs, key, owned)
                record = to_record(message, owned.partition, epoch, reading)
                owned.last = record.offset
                run.records.append(record)
                weight += record.weight
                if weight >= self._heavy:
                    break
        return HandedOver([run for run in runs.values() if self._is_ours(run)], firsts, errors, count, weight, gap)

    # The client calls back in each `consume`, so a rebalance may happen inside a hand-over.
    def _is_ours(self, run: FetchedRecords) -> bool:
        owned = self._owned_partitions.get(run.partition)
        return owned is not None and owned.epoch == run.epoch

    def _still_wanted(self) -> Iterator[Message]:
        """Yield what is left, without messages that were fetched before a seek or under another epoch."""
        left, ages = self._batches.left, self._ages
        while left:
            message, age = left.pop(), ages.pop()
            if self._age(message) == age:
                yield message

    def _age(self, message: Message) -> tuple[int, int] | None:
        owned = self._owned_partitions.get((message.topic(), message.partition()))
        return None if owned is None else (owned.epoch, owned.seek_count)


def _begin_run(runs: dict[Key, FetchedRecords], key: Key, owned: OwnedPartition) -> FetchedRecords:
    run = runs[key] = FetchedRecords(owned.partition, owned.epoch, owned.seek_count, [])
    owned.begin_run()
    return run


def _take_end(runs: dict[Key, FetchedRecords], key: Key, owned: OwnedPartition, end: int, *, told: bool) -> None:
    """Note that the log ends at this offset. `told`: the lane is told each time, and else only what is news."""
    known = owned.note_end(end)
    if known and not told:
        return
    run = runs.get(key)
    if run is None or run.epoch != owned.epoch:
        run = _begin_run(runs, key, owned)
    runs[key] = run._replace(end=end)
    if not told:
        owned.last = max(owned.last, end - 1)
