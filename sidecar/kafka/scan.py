"""Read committed records between two offsets of each partition, once: the bounded reader of everything but the lanes.

Dead letters, `find`, `audit`, `retries`, the lists of queues, the journey of a record, the settlements, the policy of a
command and the check of overdue levels are loops over a `Scan`. What follows a topic without an end uses
`next_messages` instead.

A `ScanClient` owns one Kafka consumer. It joins no group and commits nothing; the group in its configuration is only a
name that the user has the right to use. Each of its scans is one pass over some partitions, and one may follow another
when the one before is over:

    with ScanClient(kafka, group, CLIENT) as client:
        for message in client.scan(spans, Bounds(patience=8.0), expected="the events"):
            ...

A scan reads each partition from `begin` to `end`, in rising offsets; the partitions take turns as the brokers answer.
Who wants the newest first scans one window below the other (`find/finder.py`). A scan ends when every partition was
read to its end, when a bound is reached, or when its caller stops. Then:

- `left` has the partitions that were not read to their ends, with the next offset of each. A partition without a
  leader, behind an open transaction or of a broker that does not respond stays there: the caller says that it was not
  checked. With `expected` the scan raises BrokerError instead if it ends by patience or seconds.
- `overtaken` has the partitions whose next records retention deleted before they could be read.
- `missing` is a sentence if the bound on records has ended it.
- The consumer is unassigned, and no partition of it is paused, however the scan has ended.

*A few messages at a time.* How much messages weigh is known only when they are there. The client parses the headers of
all messages that one call returns. 100 000 headers, which take 300 KB in a topic, take 7 MB there, and up to 20 MB as
Python's objects. So every reader, bounded or not, looks at each message and drops it before it asks for more
(`few_messages`, `next_messages`).

*Gaps.* Readers that fetch little at a time may get records of aborted transactions as committed ones
(`client_config.WHOLE`). The first aborted transaction of a piece is left out rightly, so that a gap in the offsets
comes first, unless reading begins behind it. What is behind the gap has to be read again, with larger fetches
(`UntilGap`, `Fetches.UNTIL_GAP`).

All of it runs on the thread of its caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import partial
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.client_config import reader_config, whole_fetches
from reconsume.sidecar.kafka.clients import return_client, take_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, CONNECTION, LEADER, passing, retry_transient
from reconsume.sidecar.printable import plural

TOGETHER = 4
"""Messages that one call may return. A call for 4 costs a message 0.15 us more than one for 500, one for 1 costs 0.8
us."""
MOST, HEAVY = 500, 1024 * 1024
"""Messages in a turn of a follower, and bytes of their keys and values. JSON takes twenty times as much once parsed."""


def few_messages(consumer: Consumer, wait: float) -> Iterator[list[Message]]:
    """Yield what the client has, a few messages at a time; nothing if no message comes within `wait` seconds.

    The caller may stop after each of the lists. Whoever reads headers takes each message out of its list before.
    """
    # consume(500, t) waits its full time even if records are there: +24 ms at low rates. So they come at once.
    messages = consumer.consume(1, wait)
    while messages:
        yield messages
        messages = consumer.consume(TOGETHER, 0)


def next_messages(consumer: Consumer, wait: float, most: int = MOST, at_once: int = 1) -> Iterator[Message]:
    """Yield the next messages one by one, `most` at most: what there is for one turn of a follower.

    Nothing if no message comes within `wait` seconds. A sidecar has followers beside its lanes, so each takes no more
    than one message at a time. Only who reads as much as a lane takes some `at_once`; it must not stop in between.
    """
    count = weight = 0
    messages = consumer.consume(1, wait)
    while messages:
        messages.reverse()
        while messages:
            message = messages.pop()
            count, weight = count + 1, weight + len(message.key() or b"") + len(message.value() or b"")
            yield message
            del message
        messages = consumer.consume(at_once, 0) if count < most and weight < HEAVY else []


MARKER = 1
"""Offsets that the end of a committed transaction takes. Where more are missing, one was aborted, two ended at once, or
records left."""


def is_gap(offset: int, after: int) -> bool:
    """Return whether a transaction may have been aborted before the record at `offset`. `after`: the next offset."""
    return offset > after + MARKER


class UntilGap:
    """The messages of a reader up to the first gap. `positions`: the next offset of each partition."""

    def __init__(self, messages: Iterable[Message], positions: Mapping[PartitionName, int]) -> None:
        self.met = False
        """Whether a gap has ended them."""
        self._messages, self._next = messages, dict(positions)

    def __iter__(self) -> Iterator[Message]:
        for message in self._messages:
            partition, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if message.error() is None:
                if is_gap(offset, self._next.get(partition, offset)):
                    self.met = True
                    return
                self._next[partition] = offset + 1
            yield message


POLL = 0.1
"""Seconds of one call at most, so that Ctrl-C need not wait."""
REPORT_EVERY = 100
"""Records between two reports of the progress."""
_passes = passing(CONNECTION, LEADER, frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED}))
"""Errors after which the client reads on by itself. No right on the group is needed to read."""

P = TypeVar("P", bound=PartitionName)
Report = Callable[[int, int], None]
"""Called with the number of records that were read, and of those that there may be."""


class Fetches(Enum):
    """How much is fetched at a time (`client_config.WHOLE` says why)."""

    LITTLE = auto()
    """For topics where any producer may write."""
    WHOLE = auto()
    """For the group's own topics, where transactions write."""
    UNTIL_GAP = auto()
    """Little up to the first gap that an aborted transaction may have left, and whole from there on: for the group's
    own topics, where memory is short."""


class HasSpan(Protocol):
    """The offsets of a partition from `begin` up to `end`."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...


class Bounds(NamedTuple):
    """Where a scan ends although records are left.

    `patience`: seconds without a record. `seconds`: of the whole scan. `records`: that are read at most.
    """

    patience: float = inf
    seconds: float = inf
    records: float = inf


def partition_of(message: Message) -> PartitionName:
    """Return the partition of a message."""
    return message.topic() or "", message.partition() or 0


class ScanClient:
    """A consumer for scans, one after another. A context manager: its end returns the consumer (`return_client`).

    Raises KafkaException if the client cannot be made.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        group: str,
        client_id: str,
        fetches: Fetches = Fetches.WHOLE,
        *,
        committed: bool = True,
    ) -> None:
        """Create the consumer. `committed`: False also reads records of open and aborted transactions."""
        config = {
            **reader_config(kafka, group, client_id),
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            # What retention has deleted meanwhile must be an answer here, not a jump.
            "auto.offset.reset": "error",
            # A transaction's marker may be the last offset of a span. Only this event says that all is read.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            # What matters comes back as an error; librdkafka's own lines would mix with the output of a command.
            "log_level": 0,
        }
        self.reads_little = fetches is Fetches.UNTIL_GAP
        """Whether it has to be widened at the first gap."""
        self._config = whole_fetches(config) if fetches is Fetches.WHOLE else config
        self.consumer = take_client(Consumer, self._config)

    def __enter__(self) -> ScanClient:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(is_usable=kind is None)

    def close(self, *, is_usable: bool = True) -> None:
        """Return the consumer (`return_client`). `is_usable`: False after an error."""
        return_client(self.consumer, self._config, is_usable=is_usable)

    def widen(self) -> None:
        """Read on with a consumer of whole fetches."""
        small, little = self.consumer, self._config
        self._config = whole_fetches(little)
        self.consumer = take_client(Consumer, self._config)
        self.reads_little = False
        return_client(small, little)

    def scan(
        self,
        spans: Mapping[P, HasSpan],
        bounds: Bounds = Bounds(),  # noqa: B008 - it is a constant
        *,
        expected: str = "",
        report: Report = lambda read, total: None,
    ) -> Scan:
        """Return a scan of these partitions, to be iterated over once.

        `expected`: the records, in words, if it is an error that they cannot be read in time. `report`: is told of the
        progress.
        """
        return Scan(self, spans, bounds, expected, report)


class Scan:
    """One pass over a span of each partition. Attributes are complete when the iteration is over."""

    def __init__(
        self, client: ScanClient, spans: Mapping[P, HasSpan], bounds: Bounds, expected: str, report: Report
    ) -> None:
        wanted = {partition: span for partition, span in spans.items() if span.begin < span.end}
        self.left: dict[PartitionName, int] = {partition: span.begin for partition, span in wanted.items()}
        """The partitions that are not read to their ends yet, with the next offset of each."""
        self.overtaken: dict[PartitionName, int] = {}
        """Partitions whose next records were deleted before they could be read, with the first offset that was left."""
        self.read = 0
        """Records read so far."""
        self.total = sum(span.end - span.begin for span in wanted.values())
        """Offsets in all spans: there are at most as many records."""
        self.is_cut = False
        """Whether the bound on records has ended it, and there are more."""
        self._client, self._bounds, self._expected, self._report = client, bounds, expected, report
        self._ends: dict[PartitionName, int] = {partition: span.end for partition, span in wanted.items()}

    def missing(self, what: str) -> str:
        """Return a sentence if more records are there than were read, because of the bound on them. `what`: theirs, as
        in "of `what`"."""
        return f"only {self.read} of some {plural(self.total, 'record')} of {what} were read" if self.is_cut else ""

    def finish(self, partition: PartitionName) -> None:
        """Read no more of a partition. It is paused, as it may grow faster than the others are read."""
        if self.left.pop(partition, None) is not None:
            self._client.consumer.pause([TopicPartition(*partition)])

    def __iter__(self) -> Iterator[Message]:
        """Yield the records as they come. Each is let go when the next one is asked for.

        Raises BrokerError for an error that lasts, and DeniedError for a missing right.
        """
        self._assign()
        try:
            yield from self._messages()
        finally:
            # A pause outlives the assignment. Without this, the next assignment of these partitions would not be read
            # (librdkafka 2.16).
            self._client.consumer.resume([TopicPartition(*partition) for partition in self._ends])
            self._client.consumer.unassign()
        self._report(self.read, self.total)

    def _messages(self) -> Iterator[Message]:
        began = heard = time.monotonic()
        deadline = began + self._bounds.seconds
        while self.left:
            before, consumer = (len(self.left), self.read), self._client.consumer
            for messages in few_messages(consumer, POLL):
                messages.reverse()
                while messages and consumer is self._client.consumer:
                    if self._is_wanted(message := messages.pop()):
                        self.is_cut = self.read >= self._bounds.records
                        if self.is_cut:
                            return
                        self.read += 1
                        yield message
                        if self.read % REPORT_EVERY == 0:
                            self._report(self.read, self.total)
                    del message
                if time.monotonic() > deadline or consumer is not self._client.consumer:
                    break
            now = time.monotonic()  # after the caller, who may take long with the records
            if (len(self.left), self.read) != before:
                heard = now
            if self.left and now > min(heard + self._bounds.patience, deadline):
                self._expire(now > deadline)
                return

    def _expire(self, is_late: bool) -> None:
        """Raise BrokerError if the rest was expected. `is_late`: the whole scan has taken too long."""
        if self._expected and is_late:
            raise BrokerError(f"{self._expected} could not be read to its end within {self._bounds.seconds:g} s")
        if self._expected:
            raise BrokerError(f"{self._expected} could not be read on for {self._bounds.patience:.0f} s")

    def _is_wanted(self, message: Message) -> bool:
        """Whether the message is a record of its span. Note what else the message says."""
        partition, offset, error = partition_of(message), message.offset() or 0, message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._stumble(partition, error)
            return False
        after = self.left.get(partition)
        if after is None:
            return False
        if self._client.reads_little and error is None and is_gap(offset, after):
            self._client.consumer.unassign()
            self._client.widen()
            self._assign()
            return False
        self.left[partition] = offset + (error is None)
        # The last offset may be a transaction's marker, or compacted. Then only the event says that all is read.
        if self.left[partition] >= self._ends[partition]:
            self.finish(partition)
        return error is None and offset < self._ends[partition]

    def _assign(self) -> None:
        self._client.consumer.assign([TopicPartition(*partition, offset) for partition, offset in self.left.items()])

    def _stumble(self, partition: PartitionName, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._go_on(partition)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise DeniedError(f"a right is missing: READ on topic {partition[0]} ({error.str()})")
        elif not error.retriable() and not _passes(error):
            raise BrokerError(f"topic {partition[0]} cannot be read: {error.str()}") from KafkaException(error)

    def _go_on(self, partition: PartitionName) -> None:
        """Continue where the partition begins now, because retention has deleted the next records."""
        asked, consumer = TopicPartition(*partition), self._client.consumer
        ask = partial(consumer.get_watermark_offsets, asked, timeout=ANSWER_SECONDS, cached=False)
        try:
            begin, _ = retry_transient(ask, ANSWER_SECONDS, _passes)
        except KafkaException as error:
            raise BrokerError(f"where topic {partition[0]} begins is not known: {error.args[0].str()}") from error
        self.overtaken[partition] = begin
        consumer.incremental_unassign([asked])
        if begin >= self._ends.get(partition, 0):
            self.left.pop(partition, None)
        else:
            self.left[partition] = begin
            consumer.incremental_assign([TopicPartition(*partition, begin)])
