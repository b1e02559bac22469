"""Read the committed records between two offsets of each partition, once. No group is joined, nothing is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.connection import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, CONNECTION, LEADER, passing, retry_transient
from reconsume.sidecar.kafka.few_messages import few_messages
from reconsume.sidecar.kafka.gaps import is_gap

POLL = 0.1
"""Seconds of one call at most, so that Ctrl-C need not wait."""
_passes = passing(CONNECTION, LEADER, frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED}))
"""Errors after which the client reads on by itself. No right on the group is needed to read."""


P = TypeVar("P", bound=PartitionName)


class HasSpan(Protocol):
    """The offsets of a partition from `begin` up to `end`."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...


def partition_of(message: Message) -> PartitionName:
    """Return the partition of a message."""
    return message.topic() or "", message.partition() or 0


class RangeReader:
    """A reader of a span of each partition. Its consumer must have `enable.partition.eof`.

    `widen` returns a consumer with fetches that are large enough where transactions were aborted. It takes over at the
    first gap that such a transaction may have left, before anything behind it is read, and is closed by this reader.
    """

    def __init__(
        self, consumer: Consumer, spans: Mapping[P, HasSpan], widen: Callable[[], Consumer] | None = None
    ) -> None:
        """Assign the partitions to the consumer."""
        self.left: dict[PartitionName, int] = {
            partition: span.end for partition, span in spans.items() if span.begin < span.end
        }
        """The partitions that are not read to their ends yet."""
        self.overtaken: dict[PartitionName, int] = {}
        """Partitions whose next records were deleted before they could be read, with the first offset that was left.
        Only for consumers with `auto.offset.reset=error`; others go on there unnoticed."""
        self._consumer, self._widen = consumer, widen
        self._next: dict[PartitionName, int] = {
            partition: span.begin for partition, span in spans.items() if partition in self.left
        }
        self._assign()

    def records(self, patience: float = inf, deadline: float = inf) -> Iterator[Message]:
        """Yield the records as they come. Each is let go when the next one is asked for.

        Raises BrokerError for an error that lasts. Ends before everything is read if nothing has come for `patience`
        seconds, or at `deadline` (monotonic seconds).
        """
        heard, given = time.monotonic(), self._consumer
        try:
            yield from self._records(heard, patience, deadline)
        finally:
            if self._consumer is not given:
                self._consumer.close()

    def _records(self, heard: float, patience: float, deadline: float) -> Iterator[Message]:
        while self.left:
            before, consumer = len(self.left), self._consumer
            for messages in few_messages(consumer, POLL):
                messages.reverse()
                while messages and consumer is self._consumer:
                    if self._is_wanted(message := messages.pop()):
                        yield message
                        before = -1
                    del message
                if time.monotonic() > deadline:
                    return
                if consumer is not self._consumer:
                    break
            now = time.monotonic()  # after the caller, who may take long with the records
            if len(self.left) != before:
                heard = now
            if now > min(heard + patience, deadline):
                return

    def expect_all(self, what: str, patience: float) -> None:
        """Raise BrokerError if `records` has ended before everything was read. `what`: the records, in words."""
        if self.left:
            raise BrokerError(f"{what} could not be read on for {patience:.0f} s")

    def finish(self, partition: PartitionName) -> None:
        """Read no more of a partition. It is paused, as it may grow faster than the others are read."""
        if self.left.pop(partition, None) is not None:
            self._consumer.pause([TopicPartition(*partition)])

    def _is_wanted(self, message: Message) -> bool:
        """Whether the message is a record of its range. Note what else the message says."""
        partition, offset, error = partition_of(message), message.offset() or 0, message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._stumble(partition, error)
            return False
        end = self.left.get(partition)
        if end is None:
            return False
        if self._widen is not None and error is None and is_gap(offset, self._next[partition]):
            self._read_wider(self._widen)
            return False
        self._next[partition] = offset + (error is None)
        # The last offset may be a transaction's marker, or compacted. Then only the event says that all is read.
        if offset + (error is None) >= end:
            self.finish(partition)
        return error is None and offset < end

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(*partition, self._next[partition]) for partition in self.left])

    def _read_wider(self, widen: Callable[[], Consumer]) -> None:
        self._consumer.unassign()
        self._consumer, self._widen = widen(), None
        self._assign()

    def _stumble(self, partition: PartitionName, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._go_on(partition)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise DeniedError(f"a right is missing: READ on topic {partition[0]} ({error.str()})")
        elif not error.retriable() and not _passes(error):
            raise BrokerError(f"topic {partition[0]} cannot be read: {error.str()}") from KafkaException(error)

    def _go_on(self, partition: PartitionName) -> None:
        """Continue where the partition begins now, because retention has deleted the next records."""
        asked = TopicPartition(*partition)
        ask = partial(self._consumer.get_watermark_offsets, asked, timeout=ANSWER_SECONDS, cached=False)
        try:
            begin, _ = retry_transient(ask, ANSWER_SECONDS, _passes)
        except KafkaException as error:
            raise BrokerError(f"where topic {partition[0]} begins is not known: {error.args[0].str()}") from error
        self.overtaken[partition] = self._next[partition] = begin
        self._consumer.incremental_unassign([asked])
        if begin >= self.left.get(partition, 0):
            self.left.pop(partition, None)
        else:
            self._consumer.incremental_assign([TopicPartition(*partition, begin)])
