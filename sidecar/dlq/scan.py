"""Read offset spans of the dead letter topics, record by record, and track the progress."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.core.record import Partition, Record
from sidecar.dlq.topics import CLIENT, QUIET, DlqTopics, Layout
from sidecar.errors import BrokerError
from sidecar.kafka.client_config import scan_config
from sidecar.kafka.errors import sentence_of
from sidecar.kafka.messages import to_record

BATCH = 1_000
POLL = 0.1
SILENCE = 15.0
"""Seconds without a record or an end of a partition after which Kafka counts as unreachable."""


class Scan:
    """A reader of offset spans, to be iterated over once. Raises BrokerError.

    Each partition's records come in the order of their offsets. The caller closes it.
    """

    def __init__(self, topics: DlqTopics, layout: Layout) -> None:
        self.read = 0
        """Records read so far."""
        self.total = sum(span.end - span.begin for span in layout.values())
        """Offsets in all spans: there are at most as many records."""
        self._ends = {place: span.end for place, span in layout.items() if span.begin < span.end}
        self._starts = [TopicPartition(*place, layout[place].begin) for place in self._ends]
        self._began = time.monotonic()
        config = scan_config(topics.kafka, topics.names.redrive_group, CLIENT, topics.fetch)
        self._consumer = Consumer({**config, **QUIET})

    @property
    def rate(self) -> float:
        """The number of records read per second."""
        return self.read / max(time.monotonic() - self._began, 1e-3)

    @property
    def complete(self) -> bool:
        """Whether all spans were read to their ends."""
        return not self._ends

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        try:
            self._consumer.assign(self._starts)
            heard = time.monotonic()
            while self._ends:
                messages = self._consumer.consume(1, POLL)
                messages += self._consumer.consume(BATCH, 0) if messages else []
                if not messages and time.monotonic() > heard + SILENCE:
                    raise BrokerError(f"the dead letters could not be read on for {SILENCE:.0f} s")
                yield from self._records(messages)
                if messages:  # after the yields, because the caller may take long with each record
                    heard = time.monotonic()
        except KafkaException as failure:
            raise BrokerError(f"the dead letters cannot be read: {sentence_of(failure)}") from failure

    def _records(self, messages: list[Message]) -> Iterator[Record]:
        for message in messages:
            place = Partition(message.topic() or "", message.partition() or 0)
            error, offset = message.error(), message.offset() or 0
            end = self._ends.get(place)
            if end is not None and error is None and offset < end:
                self.read += 1
                yield to_record(message, place, 0, None)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise BrokerError(f"a right is missing: READ on topic {place.topic} ({error.str()})")
                raise KafkaException(error)
            # The last offset may be a transaction's marker. Then only the end-of-partition event says that all is read.
            if end is not None and (error is None or error.code() == KafkaError._PARTITION_EOF) and (
                offset + (error is None) >= end
            ):  # fmt: skip
                del self._ends[place]
                self._consumer.pause([TopicPartition(*place)])  # it may grow faster than the others are read
