"""Find out where an assigned partition starts: at its committed progress, or where a group without one begins.

This is called on the consumer's thread, also inside rebalance callbacks. So each request to the cluster has a time
limit, covers all partitions at once, and never raises. Some partitions cannot be answered for now (no leader, an open
transaction over the offset). The client gets these at an offset that is to be checked, or a logical one, which it
resolves on its own. The other partitions of the assignment start meanwhile. The lane learns the start at the first
message (`Assignment.learn`).

*Committed progress* (`committed`). One partition whose offset Kafka holds back delays the request for all of them. Each
is then requested alone, and those that stay unknown are left out.

*A relay's reader* (`ReaderBefore`). In relay mode the service reads the ready topic in the main group. A sidecar that
delivers reads it in the retry group, which has no offset there at first. It begins where the service was: otherwise all
that the service has finished would come again.

*A queue partition* is assigned by nobody. Its reader waits until it knows progress and log (`start_of_queue`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.progress import LogId, Progress, is_recreated
from reconsume.sidecar.core.progress_codec import decode, is_ours, misplaced, unread
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.consumer.log_checks import (
    EDGES_WITHIN,
    Edges,
    Leaders,
    LogIds,
    OffsetLookup,
    checked,
    end_of_done,
    first_later,
    log_recreated,
    no_log_ids,
    open_in,
    untouched,
    without_done_from,
)
from reconsume.sidecar.printable import plural

COMMITTED_WITHIN = 2.0
"""Seconds. Committed offsets come within 5 ms, unless a crashed pod's transaction still holds some back. Then the
client itself goes on asking, and the other partitions of the assignment start meanwhile."""
ONE_WITHIN = 0.25
"""Seconds for one partition by itself, or for some whose answer is there already if it comes at all."""
EACH_WITHIN = 2.0
"""Seconds for all that are requested one by one. The other partitions of the assignment wait meanwhile, and the client
itself requests the offsets that are left out."""

_LOG = logging.getLogger("reconsume.assignment")


class PassedOver:
    """What to do with progress that does not count. Here nothing: other members log it for their own partitions."""

    def unread(self, source: Partition, why: str) -> None:
        """Take in that progress cannot be read: its offset still holds."""

    def misplaced(self, source: Partition, why: str) -> None:
        """Take in that progress was made for another position: its offset still holds."""

    def moved(self, source: Partition, offset: int) -> None:
        """Take in that another tool, or consumer, has committed the position."""


def committed(
    consumer: Consumer,
    partitions: Sequence[Partition],
    passed_over: PassedOver = PassedOver(),  # noqa: B008 - it has no state
    *,
    patient: bool = True,
) -> dict[Partition, Progress | None]:
    """Return the committed progress of each partition that Kafka answers for; None if the group has no offset.

    One partition whose offset is held back delays the request for all of them. Each is then requested by itself, and
    those that stay unknown are left out. An answer that carries an error says nothing about the offset. `passed_over`
    is told of progress that does not count. If not `patient`, all are requested once, for a short time, and all are
    left out if one is held back.
    """
    topic_partitions = [TopicPartition(*source) for source in partitions]
    answers, refusal = _all(consumer, topic_partitions, COMMITTED_WITHIN if patient else ONE_WITHIN)
    if refusal:
        answers = _each(consumer, topic_partitions) if patient else []
        _held_back(len(topic_partitions) - len(answers) if patient else 0, refusal)
    answered = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition
        for topic_partition in answers
        if topic_partition.error is None
    }
    errors = [topic_partition.error for topic_partition in answers if topic_partition.error is not None]
    _held_back(len(errors), errors[0] if errors else "")
    for source, topic_partition in answered.items():
        if topic_partition.offset < 0:
            continue
        if why := unread(topic_partition.metadata):
            passed_over.unread(source, why)
        elif why := misplaced(source, topic_partition.offset, topic_partition.metadata):
            passed_over.misplaced(source, why)
        elif not is_ours(topic_partition.metadata):
            passed_over.moved(source, topic_partition.offset)
    return {source: _progress(source, topic_partition) for source, topic_partition in answered.items()}


def _all(
    consumer: Consumer, topic_partitions: list[TopicPartition], within_s: float
) -> tuple[list[TopicPartition], str]:
    """Return the answers to one request, and why there are none."""
    if not topic_partitions:
        return [], ""
    try:
        return consumer.committed(topic_partitions, timeout=within_s), ""
    except KafkaException as failure:
        return [], str(failure)  # the next request comes after it (why: kafka/errors.py)


def _each(consumer: Consumer, topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    end, answers = time.monotonic() + EACH_WITHIN, list[TopicPartition]()
    for topic_partition in topic_partitions:
        if time.monotonic() < end:
            with suppress(KafkaException):  # `committed` says how many are left out
                answers += consumer.committed([topic_partition], timeout=ONE_WITHIN)
    return answers


def _held_back(count: int, why: object) -> None:
    if count:
        text = "Kafka does not return the committed offsets of %s yet: %s"
        _LOG.warning(text, plural(count, "partition"), why, extra={"event": "offset-held-back"})


def _progress(source: Partition, topic_partition: TopicPartition) -> Progress | None:
    return decode(source, topic_partition.offset, topic_partition.metadata) if topic_partition.offset >= 0 else None


class ReaderBefore:
    """The group that read some topics before. `config`: of a reader of its offsets, with the newest credentials."""

    def __init__(self, config: Callable[[], dict[str, Any]], topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._config = config

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, Progress | None]:
        """Return its progress in each partition, None where it has none; what Kafka does not answer for is left out."""
        asked = [source for source in partitions if source.topic in self._topics]
        others = dict.fromkeys(source for source in partitions if source.topic not in self._topics)
        return {**others, **(self._ask_committed(asked) if asked else {})}

    def _ask_committed(self, asked: Sequence[Partition]) -> dict[Partition, Progress | None]:
        config = self._config()
        try:
            consumer = make_client(Consumer, config)
        except KafkaException as fault:  # while files are rotated two of them may not match
            held_back = "group %s cannot be asked where it stood: %s"
            _LOG.warning(held_back, config["group.id"], fault, extra={"event": "offset-held-back"})
            return {}
        try:
            answered = committed(consumer, asked)
        finally:
            consumer.close()
        for source, progress in answered.items():
            if progress is not None:
                text = "%s: begins at %d, where group %s stood that read it before"
                extra = {"event": "taken-over", "partition": str(source)}
                _LOG.info(text, source, progress.next, config["group.id"], extra=extra)
        return answered


class Start(NamedTuple):
    """Where a partition starts.

    `offset` may be logical (`OFFSET_STORED`, `OFFSET_BEGINNING`, `OFFSET_END`), or one of a log that is not known to be
    the one that was read. Then `progress` is None until the first message. `width`: as in `Progress`, where the group
    begins at the latest record. `lost`: as in `AssignedPartition`.
    """

    partition: Partition
    offset: int
    progress: Progress | None
    width: int | None = None
    lost: int = 0


class Starts(PassedOver):
    """The starts of one consumer's partitions.

    `start_at`: where a group without a committed offset begins, `earliest` or `latest`. `before`: who may have read
    some of the topics before. `log_ids`: tells which logs the topics have.
    """

    def __init__(self, start_at: str, before: ReaderBefore | None = None, log_ids: LogIds = no_log_ids) -> None:
        self.log_ids = log_ids
        self.leaders = Leaders()
        self.unread_progress = 0
        """How many partitions were taken over with committed progress that cannot be read here, such as a newer
        version's."""
        self.misplaced_progress = 0
        """How many partitions were taken over with progress that was made for another offset, partition or topic."""
        self._latest = start_at == "latest"
        self._before = before

    def find_starts(
        self,
        consumer: Consumer,
        logs_read: Mapping[Partition, LogId | None],
        *,
        patient: bool = True,
        in_callback: bool = False,
    ) -> list[Start]:
        """Return the start of each partition in `logs_read`, in order, which names the log that is to be read.

        `patient`: as in `committed`. `in_callback`: as in `OffsetLookup`.
        """
        partitions = list(logs_read)
        starts = {source: Start(source, OFFSET_STORED, None) for source in partitions}
        answered = self.committed(consumer, partitions, patient=patient)
        starts |= {source: Start(source, got.next, None) for source, got in answered.items() if got is not None}
        logs = OffsetLookup(consumer, self.leaders, in_callback=in_callback)
        former = {
            source: got
            for source, got in answered.items()
            if got is not None and is_recreated(got.log, logs_read[source])
        }
        starts |= self._recreated(logs, former)
        known = checked(logs, {source: got for source, got in answered.items() if source not in former})
        starts |= {source: Start(source, got.next, got) for source, got in known.items() if got is not None}
        fresh = [source for source, progress in known.items() if progress is None]
        earlier = self._before.committed(fresh) if self._before is not None else dict.fromkeys(fresh)
        starts |= {source: _taken_over(source, got) for source, got in earlier.items() if got is not None}
        starts |= self._fresh(logs, [source for source, got in earlier.items() if got is None])
        return list(starts.values())

    def lookup(self, consumer: Consumer) -> OffsetLookup:
        """Return the lookup of one operation."""
        return OffsetLookup(consumer, self.leaders)

    def committed(
        self, consumer: Consumer, partitions: Sequence[Partition], *, patient: bool = True
    ) -> dict[Partition, Progress | None]:
        """Return what the function of this name returns, for partitions that are taken over now."""
        return committed(consumer, partitions, self, patient=patient)

    def unread(self, source: Partition, why: str) -> None:
        """Log that a partition continues by its offset alone.

        Its first commit replaces the progress that cannot be read.
        """
        self.unread_progress += 1
        text = "%s: done records above the committed offset are delivered again, their marks cannot be read: %s"
        _LOG.warning(text, source, why, extra={"event": "progress-unread", "partition": str(source)})

    def misplaced(self, source: Partition, why: str) -> None:
        """Log that a partition continues by its offset alone, because its progress belongs elsewhere."""
        self.misplaced_progress += 1
        text = "%s: all records from the committed offset on are delivered, whatever its metadata says: %s"
        _LOG.warning(text, source, why, extra={"event": "progress-misplaced", "partition": str(source)})

    def moved(self, source: Partition, offset: int) -> None:
        """Log where a partition begins whose position no instance of Reconsume has committed."""
        text = "%s: begins at %d, as another tool or consumer has committed it; what comes again keeps its cycle"
        _LOG.info(text, source, offset, extra={"event": "position-moved", "partition": str(source), "offset": offset})

    def after_truncation(self, logs: OffsetLookup, edges_of: Mapping[Partition, Edges]) -> dict[Partition, Progress]:
        """Return where to continue in logs that end before what was read, where Kafka answers."""
        known = self.committed(logs.consumer, list(edges_of))
        # Kafka forgets the offsets of a deleted topic. Without one, the topic was created again: read all of it.
        fresh = {source: untouched(edges_of[source].low) for source, progress in known.items() if progress is None}
        # The topic was also created again if all of the log is younger than what was read. An owner that had read ahead
        # may commit an offset of the old topic in the new one.
        left = {source: progress for source, progress in known.items() if progress is not None}
        later = first_later(
            logs, {source: got.last_at_ms for source, got in left.items() if got.last_at_ms is not None}
        )
        return fresh | {
            source: _within(progress, edges_of[source], later.get(source))
            for source, progress in left.items()
            if progress.last_at_ms is None or source in later
        }

    def _recreated(self, logs: OffsetLookup, former: Mapping[Partition, Progress]) -> dict[Partition, Start]:
        """Return the starts of partitions whose progress is of a former log of the same name."""
        begins = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in former], EDGES_WITHIN)
        starts = dict[Partition, Start]()
        for source, got in former.items():
            log_recreated(source)
            start = Start(source, OFFSET_BEGINNING, None, lost=open_in(got))
            starts[source] = _numbered(start, begins.get(source))
        return starts

    def _fresh(self, logs: OffsetLookup, partitions: Sequence[Partition]) -> dict[Partition, Start]:
        """Return the starts of partitions for which the group has no offset."""
        topics = sorted({source.topic for source in partitions})
        widths = first_widths(logs, topics) if self._latest else dict.fromkeys(topics, 0)
        starts = [_beginning(source, widths.get(source.topic)) for source in partitions]
        numbers = logs.numbers([TopicPartition(*start.partition, start.offset) for start in starts], EDGES_WITHIN)
        return {start.partition: _numbered(start, numbers.get(start.partition)) for start in starts}


def _taken_over(source: Partition, progress: Progress) -> Start:
    """Return the start where another group stood. Its marks of single records count, its state of care does not."""
    return Start(source, progress.next, Progress(progress.next, progress.done, ours=False))


def _within(progress: Progress, edges_now: Edges, later: int | None) -> Progress:
    """Return where to continue in a log that ends before what was read.

    `later`: the first offset that is younger than what was read; None if nobody knows when that was.
    """
    if later == edges_now.low:
        return untouched(edges_now.low)
    if progress.next > edges_now.high:
        return Progress(edges_now.high, ours=False)
    return without_done_from(progress, edges_now.high)


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


def first_widths(logs: OffsetLookup, topics: Sequence[str]) -> dict[str, int]:
    """Return how many of each topic's partitions, from 0 on, belong to the group's first start, where Kafka answers.

    These partitions begin at the latest record. While the group has no offset of the topic, all of them do. Later it is
    the number that was committed with the first offsets, or 0: a partition that was added later begins at its
    beginning.
    """
    every = {topic: partitions for topic in topics if (partitions := _partitions(logs, topic))}
    progress = committed(logs.consumer, [source for partitions in every.values() for source in partitions])
    return {
        topic: max(
            (got.width or 0 for got in map(progress.get, partitions) if got is not None), default=len(partitions)
        )
        for topic, partitions in every.items()
        if progress.keys() >= set(partitions)
    }


def _partitions(logs: OffsetLookup, topic: str) -> list[Partition]:
    """Return the partitions of a topic; none if Kafka does not answer in time, or may not be asked."""
    if not logs.may_list or not (left := logs.left()):
        return []
    try:
        listed = logs.consumer.list_topics(topic, timeout=min(left, EDGES_WITHIN)).topics[topic]
    except KafkaException:
        return []
    return [] if listed.error is not None else [Partition(topic, number) for number in listed.partitions]


def start_of_queue(queue: Partition, progress: Progress | None, log_edges: Edges, log: LogId | None) -> Progress:
    """Return where the reading of a queue begins, of whose log Kafka tells the edges and the id.

    What is lost, or may be repeated, is named in the log.
    """
    low, high = log_edges
    extra, beginning = {"event": "queue-start", "partition": str(queue)}, Progress(low, ours=False, log=log)
    if progress is None:
        if high > low:
            text = "%s: the group has no progress here, so all of it is read, and what was done may be delivered again"
            _LOG.warning(text, queue, extra=extra)
        return beginning
    behind_mark = -1 if progress.mark is None else progress.mark + 1
    if is_recreated(progress.log, log) or max(end_of_done(progress), behind_mark) > high:
        text = "%s is another log than the group's progress is of: it was recreated, and is read from its beginning"
        _LOG.warning(text, queue, extra=extra)
        return beginning
    if progress.next < low:
        name_cut(queue, progress.next, low)
        return Progress(low, frozenset(offset for offset in progress.done if offset >= low), log=log or progress.log)
    return replace(progress, log=log or progress.log, last_at_ms=None)


def name_cut(queue: Partition, wanted: int, low: int) -> None:
    """Log that a queue was cut before what waited in it was read."""
    if wanted < low:
        text = "%s begins at %d now: what waited from %d on, and was not done, is lost"
        extra = {"event": "queue-lost", "partition": str(queue), "offset": wanted}
        _LOG.error(text, queue, low, wanted, extra=extra)
