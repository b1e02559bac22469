"""The partitions of one consumer (`OwnedPartition`), and the client's own assignment: what it has of them and fetches.

An open transaction may hold an offset back for minutes (KIP-447). A call that waits for it (`Consumer.committed`)
blocks the consumer's thread, and with it all partitions. A partition that is assigned at `OFFSET_STORED` blocks
nothing: it starts as soon as Kafka returns the offset. But two traits of the client matter (librdkafka 2.16):

- It may request the offsets of several partitions together, and repeats the request for all of them while Kafka holds
  back one.
- It repeats a request only while the assignment stays the same (`rd_kafka_assignment_handle_OffsetFetch`). After a
  change it reports a partition whose offset is held back as one that has no offset. The report may come after up to
  `retry.backoff.max.ms`, and meet a later request for the same partition.

So one partition at a time has its turn. Until then the client does not have the others, though the group has given them
to this member.

Whether a partition is fetched is compared with what the lane wants (`reconcile_fetches`), and nobody else pauses or
resumes. The client forgets the pause of a partition that it is given again, and keeps one over `incremental_unassign`.
So after each assignment it is unknown whether the client fetches a partition, until it was resumed or paused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.partition import FetchedRecords, WantedFetch
from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.start_offsets import Start

Key: TypeAlias = tuple[str | None, int | None]
"""Topic and partition as a message gives them. The client's types allow None; a record never has it."""


@dataclass(slots=True)
class OwnedPartition:
    """One assigned partition.

    `awaits`: the start that is not known for sure before the first message; None once the lane knows it. `wanted`: what
    the lane has stated last.
    """

    partition: Partition
    wanted: WantedFetch
    log: LogId | None = None
    """The log that is read, as Kafka told before the first fetch; None: it has not told."""
    awaits: Start | None = None
    sought: int | None = None
    """The offset of the last seek or start, until a message comes: an error that is older may still be queued."""
    last: int = -1
    """The last offset that is known to have been read."""
    last_at_ms: int | None = None
    """Of a level: the greatest timestamp (epoch ms) of what was read, as in `Progress`."""
    told_end: bool = False
    """Of a main topic: whether the lane was told of an end of the log in this epoch."""
    ended: tuple[int, int] = (-1, -1)
    """The last offset that had been read when the client last said that the log ends, and where it ended."""
    arrivals: int = 0
    """How often something has come of it: records, or an end."""

    @property
    def epoch(self) -> int:
        """Under which assignment it is owned."""
        return self.wanted.epoch

    @property
    def seek_count(self) -> int:
        """How often it was sought under this assignment."""
        return self.wanted.seek_count

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition in the client's type."""
        return TopicPartition(*self.partition)

    @property
    def position(self) -> int:
        """The offset that is to be read next."""
        if self.sought is not None:
            return self.sought
        after, end = self.ended  # behind the last record there may be markers of transactions
        return max(self.last + 1, end) if after == self.last else self.last + 1

    def begin_run(self) -> None:
        """Note that something has come: what was sought is reached."""
        self.sought = None
        self.arrivals += 1

    def is_behind_gap(self, offset: int) -> bool:
        """Return whether offsets are missing between what was read, or sought, and this one."""
        return offset > (self.last + 1 if self.sought is None else self.sought)

    def note_end(self, offset: int) -> bool:
        """Note that the log ends at `offset`; return whether the lane knows that without being told, of a main topic.

        The client says so after each record at a low rate. It is news once in an epoch (`suspects.py`), and if
        markers of transactions follow the last record.
        """
        known = self.told_end and self.sought is None and offset == self.last + 1
        self.told_end, self.ended = True, (self.last, offset)
        self.arrivals += 1
        return known


OwnedByKey: TypeAlias = Mapping[Key, OwnedPartition]


def with_edges(consumer: Consumer, owned: OwnedPartition, run: FetchedRecords) -> FetchedRecords:
    """Note the last record, and return a level's records with the greatest timestamp read and the end of the log.

    The end is what the last fetch reported: this costs no request.
    """
    if run.records:
        owned.last = run.records[-1].offset
        owned.last_at_ms = max(owned.last_at_ms or 0, *(record.timestamp for record in run.records))
    return run._replace(high=high_of(consumer, owned), last_at_ms=owned.last_at_ms)


def high_of(consumer: Consumer, owned: OwnedPartition) -> int:
    """Return the high watermark that the last fetch of a partition reported; 0 if there was none.

    Of a client that reads committed records it is not the last stable offset, which requests would return.
    """
    try:
        _, high = consumer.get_watermark_offsets(owned.topic_partition, cached=True)
    except KafkaException:  # the client has let the partition go, and says so before its callback does
        return 0
    return max(0, high)


SHORTEST_TURN = 0.25
"""Seconds. An offset that is not held back comes within 5 ms, and the first record or the end of the log soon after."""
LONGEST_TURN = 4.0
"""Seconds, on a slow cluster. Turns become longer while all of them are in vain."""
LOST_AFTER = 10.0
"""Seconds that a partition keeps its turn after the end of it while no other waits. The client repeats a request that
Kafka puts off. But if the answer was lost with its connection, and the assignment has changed since, it takes the
partition for one whose request is still under way, for ever (2.16)."""
REST = 2.0
"""Seconds from a partition's turn to its next one. `retry.backoff.max.ms` is 1 s."""


class ClientAssignment:
    """What one consumer's client has; used on the consumer's thread."""

    def __init__(self) -> None:
        self.waiting: dict[Partition, float] = {}
        """The partitions that the client does not have, in the order of their turns, and until when each of them rests
        (monotonic seconds)."""
        self._changes = 0
        """How often the client's assignment has changed."""
        self._turn_of: Partition | None = None
        self._turn_since = 0
        """After which change the turn began."""
        self._turn_ends = 0.0
        self._turn_lasts = SHORTEST_TURN
        self._in_vain: set[Partition] = set()
        """The partitions that had a turn since the last one that was not in vain."""
        self.is_choked = False
        """Whether nothing is to be fetched, as the lane is full."""
        self._fetches: dict[Partition, bool] = {}
        """Whether the client fetches each of its partitions; one of which that is unknown is left out."""
        self._unsettled: set[Partition] = set()
        """The partitions that may be fetched otherwise than they should be."""

    def give(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Make the client fetch partitions that the group has given: now, or after their turns. For the callback."""
        self._assign(consumer, [start for start in starts if start.offset != OFFSET_STORED])
        self.waiting |= {start.partition: 0.0 for start in starts if start.offset == OFFSET_STORED}

    def doubt_fetch(self, partition: Partition) -> None:
        """Have the next `reconcile_fetches` look at a partition: the lane wants something else."""
        self._unsettled.add(partition)

    def choke(self, is_choked: bool) -> None:
        """Have nothing fetched from the next `reconcile_fetches` on, or what the lane wants."""
        self.is_choked = is_choked
        self._unsettled.update(self._fetches)

    def reconcile_fetches(self, consumer: Consumer, owned_partitions: Mapping[Key, OwnedPartition]) -> None:
        """Pause and resume the partitions that the client fetches otherwise than they should be."""
        if not self._unsettled:  # as nearly always
            return
        unsettled, self._unsettled = self._unsettled, set()
        paused, resumed = list[TopicPartition](), list[TopicPartition]()
        for source in unsettled:
            owned = owned_partitions.get(source)
            if owned is None or source in self.waiting:
                continue
            is_wanted, is_fetched = owned.wanted.is_fetched and not self.is_choked, self._fetches.get(source)
            if is_fetched is None or (is_wanted and not is_fetched):
                resumed.append(owned.topic_partition)
            if not is_wanted and is_fetched is not False:
                paused.append(owned.topic_partition)
            self._fetches[source] = is_wanted
        if resumed:
            consumer.resume(resumed)
        if paused:
            consumer.pause(paused)

    def take_back(self, consumer: Consumer, partitions: Collection[Partition]) -> None:
        """Make the client fetch partitions no more that the group takes back. For the callbacks."""
        self._unassign(consumer, [source for source in partitions if source not in self.waiting])
        for source in partitions:
            self.waiting.pop(source, None)

    def give_anew(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Make the client fetch partitions from other offsets. Not by a seek: one that is out of range takes none."""
        # The client may take a call for the answer to a rebalance (`membership.py`): no call without a partition.
        if gone := [start.partition for start in starts if start.partition not in self.waiting]:
            self._unassign(consumer, gone)
            self.waiting |= dict.fromkeys(gone, 0.0)
        if known := [start for start in starts if start.offset != OFFSET_STORED]:
            self._assign(consumer, known)
            for start in known:
                del self.waiting[start.partition]

    def next_turn(self, consumer: Consumer, now: float) -> Partition | None:
        """If it is time, end the turn and begin the next one; return the partition whose turn it is from now on.

        `now`: monotonic seconds.
        """
        if now < self._turn_ends:
            return None
        source = next((source for source, rests_until in self.waiting.items() if rests_until <= now), None)
        if source is None:
            if now >= self._turn_ends + LOST_AFTER:
                self._put_off(consumer, now)
            return None
        self._put_off(consumer, now)
        del self.waiting[source]
        if source in self._in_vain:
            self._turn_lasts = min(2 * self._turn_lasts, LONGEST_TURN)
            self._in_vain.clear()
        self._in_vain.add(source)
        self._assign(consumer, [Start(source, OFFSET_STORED, None)])
        self._turn_of, self._turn_since, self._turn_ends = source, self._changes, now + self._turn_lasts
        return source

    def _put_off(self, consumer: Consumer, now: float) -> None:
        """End the turn, if there is one, with a rest."""
        if (last := self._turn_of) is not None:
            self._unassign(consumer, [last])
            self.waiting[last] = now + REST

    def has_no_offset(self, partition: Partition) -> bool:
        """Return whether the client's report that the group has no offset of a partition can be believed."""
        if partition == self._turn_of:
            return self._turn_since == self._changes
        return partition not in self.waiting

    def started(self, partition: Partition) -> None:
        """Note that it is known where a partition starts: the next one has its turn."""
        if partition == self._turn_of:
            self._end_turn()
            self._turn_lasts = SHORTEST_TURN
            self._in_vain.clear()

    def _end_turn(self) -> None:
        self._turn_of, self._turn_ends = None, 0.0

    def _assign(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        consumer.incremental_assign([TopicPartition(*start.partition, start.offset) for start in starts])
        self._changes += 1
        self._unsettled.update(start.partition for start in starts)

    def _unassign(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        consumer.incremental_unassign([TopicPartition(*source) for source in partitions])
        self._changes += 1
        for source in partitions:
            self._fetches.pop(source, None)
        if self._turn_of in partitions:
            self._end_turn()
