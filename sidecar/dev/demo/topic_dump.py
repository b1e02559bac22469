"""Read the demo's topics: all of them to their end for the check, and the events as they come for the display."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.dev.demo.record_histories import Row
from sidecar.errors import BrokerError
from sidecar.kafka.messages import read_headers
from topics.events import Event, decode_event

ANSWER_SECONDS = 10.0
DUMP_SECONDS = 60.0
"""Seconds for reading all topics; the demo's topics need well under one."""


@contextmanager
def reading(bootstrap: str, topics: Iterable[str]) -> Iterator[tuple[Consumer, set[tuple[str, int]]]]:
    """Yield a consumer at the beginning of every partition of `topics`, and these partitions. It joins and commits
    nothing."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reconsume-demo-reader",  # required, but never used: the consumer calls only `assign`
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(timeout=ANSWER_SECONDS).topics
        partitions = {(topic, number) for topic in topics for number in found[topic].partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])
        yield consumer, partitions
    finally:
        consumer.close()


def dump_topics(bootstrap: str, topics: Iterable[str]) -> list[Row]:
    """Return every committed record of the topics, ordered by place. Raises BrokerError after a minute (DUMP_SECONDS).

    No producer may be writing: the end is where a partition ends when it is reached.
    """
    until = time.monotonic() + DUMP_SECONDS
    rows: list[Row] = []
    with reading(bootstrap, topics) as (consumer, left):
        while left:
            if time.monotonic() > until:
                raise BrokerError(f"{len(left)} partitions could not be read to their end in {DUMP_SECONDS:.0f} s")
            for message in consumer.consume(1, 0.1) + consumer.consume(5000, 0):
                if message.error() is None:
                    rows.append(row_of(message))
                else:
                    left.discard(end_of(message))
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def row_of(message: Message) -> Row:
    """Return the message as a row."""
    topic, partition = place_of(message)
    headers = tuple(read_headers(message) or ())
    return Row(topic, partition, message.offset() or 0, message.timestamp()[1], message.key(), message.value(), headers)


def end_of(message: Message) -> tuple[str, int]:
    """Return the partition that is read to its end. Raises BrokerError for any other error message."""
    error = message.error()
    assert error is not None
    if error.code() != KafkaError._PARTITION_EOF:
        raise BrokerError(f"the topics cannot be read: {error.str()}") from KafkaException(error)
    return place_of(message)


def place_of(message: Message) -> tuple[str, int]:
    """Return the topic and the partition of a consumed message, or of an end-of-partition message."""
    return message.topic() or "", message.partition() or 0


class EventTail:
    """The group's events as they come."""

    def __init__(self, consumer: Consumer) -> None:
        """Take a consumer that reads only the events topic."""
        self._consumer = consumer

    def read(self, seconds: float) -> list[Event]:
        """Return the events that are new; wait up to `seconds` for the first."""
        events: list[Event] = []
        for message in self._consumer.consume(1, seconds) + self._consumer.consume(5000, 0):
            if message.error() is not None:
                end_of(message)
            elif isinstance(event := decode_event(message.value()), Event):
                events.append(event)
        return events
