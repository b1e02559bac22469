"""Reads topics for an audit: where they begin and end, what is committed, and every record between two offsets.

No group is joined and nothing is committed. Records are read as committed, up to the high watermark: what an open
transaction holds back is waited for, and named where it never comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.audit.facts import Number
from sidecar.audit.parsing import TopicRecord
from sidecar.core.progress import Progress, decode
from sidecar.errors import BrokerError
from sidecar.kafka.client_config import reader_config
from sidecar.kafka.errors import AGAIN, ANSWER_SECONDS, raise_partition_errors, retry_transient, sentence_of
from sidecar.kafka.messages import read_headers

BATCH = 5_000
PATIENCE = 30.0
"""Seconds without a record after which an open transaction counts as hanging; ours end after 10 s, or are ended."""
CLIENT = "reconsume-audit"

Offsets: TypeAlias = Mapping[Number, int]
Wanted: TypeAlias = Mapping[Number, Iterator[int]]
"""The offsets of each partition that are wanted, rising."""
PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Errors that pass by themselves; the client calls few of them retriable, and gives them back at once (2.16)."""


class Watermarks(NamedTuple):
    """The first offset of a partition that is still there, and the offset after its last record or marker."""

    begin: int
    end: int


class First(NamedTuple):
    """The first record that was read of a partition, and the last: their timestamps, epoch ms."""

    first: int
    last: int


class Asked(Protocol):
    """A client that may be asked for a group's progress."""

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """What is committed; raises KafkaException."""


class AuditKafka:
    """A look at the cluster; every method raises BrokerError when it does not answer. A context manager."""

    def __init__(self, kafka: Mapping[str, str], group: str, patience: float = PATIENCE) -> None:
        """`group`: a group whose progress may be asked for; all reading is done under its name. `patience`: seconds."""
        self._patience = patience
        self._kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        config = {
            **reader_config(kafka, group, CLIENT),
            # An offset that retention has taken meanwhile is an answer here, not a jump.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # The default of 1 000 stalls the fetcher a second each time its queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 50,
            # With the number of partitions unknown, these bound the memory.
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 256 * 1024,
        }
        self._consumer = Consumer(config)
        # Its watermarks are high watermarks, and what it asks for never waits for an open transaction.
        self._asking = Consumer({**reader_config(kafka, group, CLIENT), "isolation.level": "read_uncommitted"})
        self.seen: dict[Number, First] = {}
        """What was read of each partition."""
        self.overtaken: dict[Number, int] = {}
        """Partitions whose records were deleted before they could be read: the first offset that was left."""
        self.stuck: dict[Number, int] = {}
        """Partitions that an open transaction holds back, and the offset where."""

    def __enter__(self) -> AuditKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
        self._asking.close()

    def topics(self) -> dict[str, int]:
        """Every topic that may be seen, with its number of partitions."""
        try:
            found = self._asking.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException as error:
            raise self._fault("the topics cannot be listed", error) from error
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def marks(self, places: Iterable[Number]) -> dict[Number, Watermarks]:
        """Where each partition begins and ends; the end counts what is not committed yet."""
        try:
            return {place: retry_transient(partial(self._mark, place), ANSWER_SECONDS, passes) for place in places}
        except KafkaException as error:
            raise self._fault("the offsets of the topics cannot be asked for", error) from error

    def _mark(self, place: Number) -> Watermarks:
        return Watermarks(*self._asking.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER_SECONDS))

    def starts(self, marks: Mapping[Number, Watermarks], since: int | None) -> dict[Number, int]:
        """Where to read from: the beginnings, or the first records at or after `since` (epoch ms)."""
        if since is None or not marks:
            return {place: mark.begin for place, mark in marks.items()}
        asked = [TopicPartition(*place, since) for place in marks]
        try:
            ask = partial(self._asking.offsets_for_times, asked, timeout=ANSWER_SECONDS)
            found = retry_transient(ask, ANSWER_SECONDS, passes)
        except KafkaException as error:
            raise self._fault("the offsets of a time cannot be asked for", error) from error
        offsets = {(place.topic, place.partition): place.offset for place in found}
        return {place: mark.end if offsets[place] < 0 else offsets[place] for place, mark in marks.items()}

    def progress(self, group: str, places: Iterable[Number], *, stable: bool) -> dict[Number, Progress]:
        """What the group has committed, where it has. `stable`: with all that is being committed now."""
        asked = [TopicPartition(*place) for place in places]
        if not asked:
            return {}
        level = "read_committed" if stable else "read_uncommitted"
        reader = Consumer({**reader_config(self._kafka, group, CLIENT), "isolation.level": level})
        try:
            found = committed_of(reader, asked, self._patience)
        except KafkaException as error:
            raise self._fault(f"the progress of group {group} cannot be asked for", error) from error
        finally:
            reader.close()
        return {(p.topic, p.partition): decode(p.offset, p.metadata) for p in found if p.offset >= 0}

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, starts: Offsets, ends: Offsets, wanted: Mapping[Number, Iterator[int]] | None = None
    ) -> Iterator[list[TopicRecord]]:
        """All committed records from `starts` up to `ends`, as they come; only those `wanted` (rising) where given."""
        left = {place: end for place, end in ends.items() if starts[place] < end}
        self._consumer.assign([TopicPartition(*place, starts[place]) for place in left])
        picks = None if wanted is None else {place: Pick(offsets) for place, offsets in wanted.items()}
        heard = time.monotonic()
        while left:
            messages = self._consumer.consume(1, 0.2) + self._consumer.consume(BATCH, 0)
            rows = [row for message in messages if (row := self._taken(message, left, picks)) is not None]
            if any(message.error() is None for message in messages):
                heard = time.monotonic()
            elif time.monotonic() - heard > self._patience:
                self.stuck |= {place: self._position(place, starts[place]) for place in left}
                left.clear()
            yield rows
        # A pause outlives the assignment: the next one of these partitions would stand still (librdkafka 2.16).
        self._consumer.resume([TopicPartition(*place) for place in ends if starts[place] < ends[place]])
        self._consumer.unassign()

    def _position(self, place: Number, start: int) -> int:
        [found] = self._consumer.position([TopicPartition(*place)])
        return max(found.offset, start)  # negative where nothing was read

    def _taken(
        self, message: Message, left: dict[Number, int], picks: Mapping[Number, Pick] | None
    ) -> TopicRecord | None:
        """The record, if it is wanted; what a message says of its partition's end is noted."""
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        if error is not None:
            self._told(error, place, offset, left)
            return None
        end = left.get(place)
        if end is None or offset >= end:
            self._end(place, left)
            return None
        if offset + 1 >= end:
            self._end(place, left)
        timestamp = message.timestamp()[1]
        known = self.seen.get(place)
        self.seen[place] = First(timestamp if known is None else known.first, timestamp)
        if picks is not None and not picks[place].takes(offset):
            return None
        return TopicRecord(*place, offset, timestamp, message.key(), message.value(), headers_of(message))

    def _told(self, error: KafkaError, place: Number, offset: int, left: dict[Number, int]) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if offset >= left.get(place, 0):
                self._end(place, left)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._go_on(place, left)
        elif error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):  # the client tries again itself
            raise self._fault(f"topic {place[0]} cannot be read", KafkaException(error))

    def _go_on(self, place: Number, left: dict[Number, int]) -> None:
        """Retention was faster: read on where the partition begins now."""
        begin = self.marks([place])[place].begin
        self.overtaken[place] = begin
        self.seen.pop(place, None)
        self._consumer.incremental_unassign([TopicPartition(*place)])
        if begin >= left.get(place, 0):
            left.pop(place, None)
        else:
            self._consumer.incremental_assign([TopicPartition(*place, begin)])

    def _end(self, place: Number, left: dict[Number, int]) -> None:
        """Nothing more is wanted of a partition."""
        if left.pop(place, None) is not None and left:
            self._consumer.pause([TopicPartition(*place)])

    def _fault(self, what: str, error: KafkaException) -> BrokerError:
        code = error.args[0].code()
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return BrokerError(f"no broker of {self._servers} answered within {ANSWER_SECONDS:.0f} s: {what}")
        return BrokerError(f"{what}: {sentence_of(error)}")


class Pick:
    """Which offsets of a partition are wanted, asked in rising order."""

    def __init__(self, offsets: Iterator[int]) -> None:
        self._offsets = offsets
        self._next = next(offsets, None)

    def takes(self, offset: int) -> bool:
        """Whether the record at an offset is wanted."""
        while self._next is not None and self._next < offset:
            self._next = next(self._offsets, None)
        return self._next == offset


def committed_of(
    reader: Asked, places: list[TopicPartition], within: float, again: float = AGAIN
) -> list[TopicPartition]:
    """What a group has committed, asked again while its coordinator is not there yet. Raises KafkaException."""
    return retry_transient(
        lambda: raise_partition_errors(reader.committed(places, timeout=within)), within, passes, again
    )


def passes(error: KafkaError) -> bool:
    """Whether the same question may have an answer a moment later."""
    return error.code() in PASSING or bool(error.retriable())


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """The record's headers; None when a key is not UTF-8, which the client cannot read."""
    try:
        return read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return None
