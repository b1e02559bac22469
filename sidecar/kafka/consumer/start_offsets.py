"""Find out where an assigned partition starts: at its committed progress, or where a group without one begins.

This is called on the consumer's thread, inside rebalance callbacks. So each request to the cluster has a time limit,
covers all partitions at once, and never raises. Some partitions cannot be answered for now (no leader, an open
transaction over the offset). The client gets these at a logical offset, which it resolves by itself. The other
partitions of the assignment start meanwhile. The lane learns the start at the first message (`Assignment.learn`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, KafkaException, TopicPartition
from msgspec.structs import replace

from sidecar.core.progress import Progress
from sidecar.core.record import NEVER, Partition
from sidecar.kafka.consumer.committed_offsets import committed

EDGES_WITHIN = 2.0
"""Seconds for the first or last offsets of all partitions together. A request takes 24 ms for 216 of them (measured).
"""

_LOG = logging.getLogger("reconsume.assignment")


class Start(NamedTuple):
    """Where a partition starts.

    `offset` may be logical (`OFFSET_STORED`, `OFFSET_BEGINNING`, `OFFSET_END`): then `progress` is None until the first
    message. `width`: as in `Progress`, where the group begins at the latest record.
    """

    partition: Partition
    offset: int
    progress: Progress | None
    width: int | None = None


class Edges(NamedTuple):
    """The first offset of a partition's log, and the offset after its last stable record."""

    low: int
    high: int


class Starts:
    """The starts of one consumer's partitions.

    `start_at`: where a group without a committed offset begins, `earliest` or `latest`.
    """

    def __init__(self, start_at: str) -> None:
        self.unread_progress = 0
        """How many partitions were taken over with committed progress that cannot be read here, such as a newer
        version's."""
        self._latest = start_at == "latest"

    def find(self, consumer: Consumer, partitions: Sequence[Partition]) -> list[Start]:
        """Return the start of each partition, in order."""
        found = {source: Start(source, OFFSET_STORED, None) for source in partitions}
        known = self.committed(consumer, partitions)
        read = {source: (reach(got), got.last_at) for source, got in known.items() if got and got.last_at is not None}
        known |= {source: untouched(first) for source, first in made_anew(consumer, read).items()}
        known |= within_logs(consumer, known)
        found |= {source: Start(source, got.next, got) for source, got in known.items() if got is not None}
        found |= self._fresh(consumer, [source for source, progress in known.items() if progress is None])
        return list(found.values())

    def committed(self, consumer: Consumer, partitions: Sequence[Partition]) -> dict[Partition, Progress | None]:
        """Return what the function of this name returns, for partitions that are taken over now."""
        return committed(consumer, partitions, self._pass_over)

    def _pass_over(self, source: Partition, why: str) -> None:
        """Log that a partition continues by its offset alone.

        Its first commit replaces the progress that cannot be read.
        """
        self.unread_progress += 1
        text = "%s: done records above the committed offset are delivered again, their marks cannot be read: %s"
        _LOG.warning(text, source, why, extra={"event": "progress-unread", "partition": str(source)})

    def after_truncation(self, consumer: Consumer, partition: Partition, found: Edges) -> Progress | None:
        """Return where to continue in a log that ends before what was read; None if Kafka does not answer."""
        answer = self.committed(consumer, [partition])
        if partition not in answer:
            return None
        progress = answer[partition]
        # Kafka forgets the offsets of a deleted topic. Without one, the topic was created again: read all of it.
        if progress is None:
            return untouched(found.low)
        # The topic was also created again if all of the log is younger than what was read. An owner that had read ahead
        # may commit an offset of the old topic in the new one.
        if progress.last_at is not None:
            later = first_later(consumer, partition, progress.last_at)
            if later is None or later == found.low:
                return None if later is None else untouched(found.low)
        if progress.next > found.high:
            return Progress(found.high, ours=False)
        return without_marks_from(progress, found.high)

    def _fresh(self, consumer: Consumer, partitions: list[Partition]) -> dict[Partition, Start]:
        """Return the starts of partitions for which the group has no offset."""
        starts: list[Start] = []
        for topic in sorted({source.topic for source in partitions}):
            of_topic = [source for source in partitions if source.topic == topic]
            width = first_width(consumer, topic) if self._latest else 0
            starts += [_beginning(source, width) for source in of_topic]
        numbers = offsets_at(consumer, [TopicPartition(*start.partition, start.offset) for start in starts])
        return {start.partition: _numbered(start, numbers.get(start.partition)) for start in starts}


def _beginning(source: Partition, width: int | None) -> Start:
    """Return the start of a partition for which the group has no offset.

    `width`: how many partitions begin at the latest record. None: the client is to request the offset again.
    """
    if width is None:
        return Start(source, OFFSET_STORED, None)
    if source.number < width:
        return Start(source, OFFSET_END, None, width)
    return Start(source, OFFSET_BEGINNING, None)


def _numbered(start: Start, number: int | None) -> Start:
    if number is None:
        return start
    return start._replace(offset=number, progress=untouched(number, start.width))


def asked_apart(starts: Sequence[Start]) -> list[list[TopicPartition]]:
    """Return what to assign together: each partition alone for whose offset the client has to ask the group.

    The client asks once for all that it gets together, and repeats the request for all while Kafka holds back one of
    the offsets (librdkafka 2.16): a dead pod's transaction over one partition would stop the others until it ends.
    """
    places = [TopicPartition(*start.partition, start.offset) for start in starts]
    known = [place for place in places if place.offset != OFFSET_STORED]
    return [known, *([place] for place in places if place.offset == OFFSET_STORED)]


def untouched(first: int, width: int | None = None) -> Progress:
    """Return the progress in a log of which the group has read nothing; it begins at `first`."""
    return Progress(first, ours=False, width=width, last_at=0)


def first_width(consumer: Consumer, topic: str) -> int | None:
    """Return how many of a topic's partitions, from 0 on, belong to the group's first start.

    These partitions begin at the latest record. While the group has no offset of the topic, all of them do. Later it is
    the number that was committed with the first offsets, or 0: a partition that was added later begins at its
    beginning. None if Kafka does not answer.
    """
    try:
        listed = consumer.list_topics(topic, timeout=EDGES_WITHIN).topics[topic]
    except KafkaException:
        return None
    every = [Partition(topic, number) for number in listed.partitions]
    found = committed(consumer, every)
    if listed.error is not None or len(found) < len(every):
        return None
    read = [progress for progress in found.values() if progress is not None]
    return max((progress.width or 0 for progress in read), default=len(every))


def edges(consumer: Consumer, partition: Partition) -> Edges | None:
    """Return where a partition's log begins and ends now; None if Kafka does not answer."""
    low = offsets_at(consumer, [TopicPartition(*partition, OFFSET_BEGINNING)]).get(partition)
    high = offsets_at(consumer, [TopicPartition(*partition, OFFSET_END)]).get(partition)
    return None if low is None or high is None else Edges(low, high)


def made_anew(
    consumer: Consumer, read: Mapping[Partition, tuple[int, int]], within: float = EDGES_WITHIN
) -> dict[Partition, int]:
    """Return the partitions whose log is another one than was read, and where each of these logs begins.

    Their topics were deleted and created again. `read`: for each partition the offset below which it was read, and the
    greatest timestamp (epoch ms) of what was read. The client does not report a new log: it reads on at the old offset
    as soon as the new log is that long.
    """
    asked = [TopicPartition(*source, at + 1) for source, (_, at) in read.items()]
    found = offsets_at(consumer, asked, within)
    younger = {source: first for source, first in found.items() if first < read[source][0]}
    # All of another log is younger than what was read. In the same log only a transaction's marker can be younger and
    # lie below the place: a search by time finds markers too, and what was read lies before it.
    begins = offsets_at(consumer, [TopicPartition(*source, OFFSET_BEGINNING) for source in younger], within)
    return {source: first for source, first in younger.items() if begins.get(source) == first}


def reach(progress: Progress) -> int:
    """Return the offset after the last record that the progress says is done."""
    return max(progress.next, max(progress.done, default=-1) + 1)


def without_marks_from(progress: Progress, end: int) -> Progress:
    """Return the progress without the marks of done records at `end` or behind it."""
    return replace(progress, done=frozenset(offset for offset in progress.done if offset < end))


def within_logs(consumer: Consumer, known: Mapping[Partition, Progress | None]) -> dict[Partition, Progress]:
    """Return progress without what lies behind the end of the log, where it has some.

    That is of a former log, and would pass over records of this one as soon as it is that long: marks of done records,
    and the place itself if the log is still empty. Later, the records themselves show that it is another log.
    """
    reached = {source: got for source, got in known.items() if got is not None and reach(got) > 0}
    ends = offsets_at(consumer, [TopicPartition(*source, OFFSET_END) for source in reached])
    beyond = {source: got for source, got in reached.items() if reach(got) > ends.get(source, NEVER)}
    short = [source for source, got in beyond.items() if got.next > ends[source]]
    begins = offsets_at(consumer, [TopicPartition(*source, OFFSET_BEGINNING) for source in short])
    empty = {source for source in short if begins.get(source) == ends[source]}
    return {
        source: untouched(ends[source]) if source in empty else without_marks_from(got, ends[source])
        for source, got in beyond.items()
    }


def first_later(consumer: Consumer, partition: Partition, at: int) -> int | None:
    """Return the first offset of a record that is younger than `at` (epoch ms); `OFFSET_END` if there is none.

    None if Kafka does not answer.
    """
    try:
        (place,) = consumer.offsets_for_times([TopicPartition(*partition, at + 1)], timeout=EDGES_WITHIN)
    except KafkaException as refusal:
        _LOG.warning("cannot look up offsets by time yet: %s", refusal, extra={"event": "offsets-unanswered"})
        return None
    return place.offset if place.error is None else None


def offsets_at(consumer: Consumer, places: list[TopicPartition], within: float = EDGES_WITHIN) -> dict[Partition, int]:
    """Return the offset of the record behind each logical offset or time in `places`.

    Partitions whose leader does not answer, or that have no such offset, are left out.
    """
    asked = [place for place in places if place.offset != OFFSET_STORED]
    if not asked:
        return {}
    try:
        found = consumer.offsets_for_times(asked, timeout=within)
    except KafkaException as refusal:
        _LOG.warning("cannot look up first or last offsets yet: %s", refusal, extra={"event": "offsets-unanswered"})
        return {}
    return {
        Partition(place.topic, place.partition): place.offset
        for place in found
        if place.error is None and place.offset >= 0
    }
