"""Collect the records of one hand-over, partition by partition, until they are many or heavy.

*Batches.* A hand-over wakes the event loop. Between wake-ups the processor forgets the code: a record that comes alone
costs ten times what it costs in a batch (measured). So where another record is expected soon, it is waited for. A batch
is taken a few messages at a time, because what they weigh is known only when their headers were read.

*Unknown starts.* Of a partition whose start is not known yet, only the offset of the first message is kept. The start
is found out for all such partitions together, and they are fetched again: nothing polls meanwhile, and their messages
may be heavy.

*Gaps.* Where small fetches are made, a gap in the offsets of a main topic ends what is taken of the partition:
transactions may have left it, and small fetches may bring their aborted records (`client_config.WHOLE`).

*Rebalances.* A rebalance may happen meanwhile: the client calls back while it is asked for more messages. So what was
collected for a partition counts only if the partition is still ours, under the same epoch, when it is handed over.

*Errors* are sorted by what they say of a partition's position, for all partitions of a batch together
(`lost_positions`): the consumer's thread requests offsets for all of them at once, because it must poll.

All of it runs on the consumer's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message

from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import Key, OwnedByKey, OwnedPartition
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.scan import TOGETHER
from reconsume.sidecar.process_memory import trim_memory

BATCH = 500
"""Messages in one hand-over at most. Larger ones are slower (the processor's cache)."""
HEAVY = 4 * 1024 * 1024
"""Bytes (`Record.weight`) after which a hand-over ends. 500 usual records weigh 1 MB, with all headers of a retry 2."""
LIGHT = HEAVY // 64
"""Average weight in a hand-over up to which the next one takes twice as many messages at a time, and else one."""
MOST_TOGETHER = 16
"""Messages that one call may return after light hand-overs. Each call hands Python's lock to the event loop: with 8
messages a call a record in batches costs 2 us more than with all of them. The headers of 16 take 112 MB at worst."""
GATHER = 0.0015
"""Seconds that the first message waits for others at a steady load. Each is so much later at most."""
STEADY = 500
"""Messages a second from which on others are waited for. With fewer, hardly one would come meanwhile."""
BUSY = 20_000
"""Messages a second up to which others are waited for. With more, they come in large batches anyway."""
WINDOW = 0.1
"""Seconds over which the load is measured."""

TRIM_EVERY = 0.1
"""Seconds between two returns of freed memory while hand-overs are heavy. Without it mixed records took 30 MiB more."""


class Batches:
    """The batches of one consumer. All calls come from its thread. `most`: messages that one call may return."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
        most: int = MOST_TOGETHER,
    ) -> None:
        self.left: list[Message] = []
        """Messages that were taken from the client and that the last batch was too heavy for; the next one is last."""
        self._clock, self._nap, self._most = clock, nap, most
        self._gathering = False
        self._step = TOGETHER
        self._taken = 0
        self._since = self._trimmed = 0.0

    def next_batch(self, consumer: Consumer, wait: float) -> Iterator[Message]:
        """Return the next batch; an empty one if no message comes within `wait` seconds.

        The caller reads it until it weighs HEAVY, and then calls `ended`. Calls of the client are made meanwhile.
        """
        # consume(500, t) waits its full time even if records are there: +24 ms at low rates. So they come at once.
        messages = consumer.consume(1, wait)
        if messages and self._gathering:
            self._nap(GATHER)
        return self._rest(consumer, messages)

    def _rest(self, consumer: Consumer, messages: list[Message]) -> Iterator[Message]:
        count, asked = 0, 1
        while messages:
            count, taken = count + len(messages), len(messages)
            left = self.left = messages[::-1]
            while left:
                yield left.pop()
            if taken < asked or count == BATCH:
                return
            asked = min(self._step, BATCH - count)
            messages = consumer.consume(asked, 0)

    def ended(self, count: int, weight: int) -> None:
        """Note how many messages of the batch were read, and what their records weigh."""
        self._step = min(2 * self._step, self._most) if weight <= count * LIGHT else 1
        self._taken += count
        at = self._clock()
        if self._step == 1 and at >= self._trimmed + TRIM_EVERY:
            self._trimmed = at
            trim_memory()
        if at - self._since >= WINDOW:
            # In a window of large batches nothing is gained, and a hand-over must not be late.
            self._gathering = STEADY * (at - self._since) <= self._taken <= BUSY * (at - self._since)
            self._taken, self._since = 0, at


class LostPositions(NamedTuple):
    """What a batch's errors say.

    `unstarted`: awaited partitions that have no committed offset, by the client's report. `lost`: partitions whose next
    offset is not in the log, and that offset. `others`: the errors that say something else.
    """

    unstarted: frozenset[Partition]
    lost: dict[Partition, int]
    others: list[KafkaError]


def is_end(error: KafkaError) -> bool:
    """Return whether this is no error, but the end of a log."""
    return error.code() == KafkaError._PARTITION_EOF


def lost_positions(owned_partitions: OwnedByKey, errors: Iterable[tuple[Message, KafkaError]]) -> LostPositions:
    """Return what these errors say."""
    unstarted, lost, others = set[Partition](), dict[Partition, int](), list[KafkaError]()
    for message, error in errors:
        owned = owned_partitions.get((message.topic(), message.partition()))
        # A client that had the partition before may take its former beginning for the present one, once (2.16). That is
        # a lost position like any other.
        if owned is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
            others.append(error)
        elif owned.awaits is not None:
            unstarted.add(owned.partition)
        else:  # of several errors the lowest offset: nothing may be skipped
            offset = message.offset() or 0
            lost[owned.partition] = min(offset, lost.get(owned.partition, offset))
    return LostPositions(frozenset(unstarted), lost, others)


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

    def forget_partitions(self, partitions: Collection[Partition]) -> None:
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
