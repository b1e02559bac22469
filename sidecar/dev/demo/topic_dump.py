"""Read the demo's topics: all of them to their end for the check, and the events as they come for the display."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.dev.demo.record_histories import Row
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, few_messages, partition_of
from reconsume.topics.events import Event, decode_event

CLIENT = "reconsume-demo-reader"
DUMP_SECONDS = 60.0
"""Seconds for reading all topics; the demo's topics need well under one."""


def spans_of(bootstrap: str, topics: Iterable[str]) -> dict[PartitionName, Span]:
    """Return where every partition of the topics begins and ends. Raises BrokerError."""
    cluster = Cluster({"bootstrap.servers": bootstrap}, CLIENT)
    return cluster.spans(
        partition for topic in cluster.find_topics(topics).values() for partition in topic.all_partitions
    )


def dump_topics(bootstrap: str, topics: Iterable[str]) -> list[Row]:
    """Return every committed record of the topics, ordered by offset. Raises BrokerError after a minute (DUMP_SECONDS).

    No producer may be writing: records that come later are left out.
    """
    spans = spans_of(bootstrap, topics)
    with ScanClient({"bootstrap.servers": bootstrap}, CLIENT, CLIENT, Fetches.LITTLE) as client:
        scan = client.scan(spans, Bounds(seconds=DUMP_SECONDS), expected="a topic")
        rows = [row_of(message) for message in scan]
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def row_of(message: Message) -> Row:
    """Return the message as a row."""
    headers = read_headers(message) or []
    return Row(
        *partition_of(message), message.offset() or 0, message.timestamp()[1], message.key(), message.value(), headers
    )


class EventTail:
    """The group's events as they come."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """Begin at the beginning of the events topic."""
        config = follower_config({"bootstrap.servers": bootstrap}, CLIENT, CLIENT)
        self._consumer = make_client(Consumer, {**config, "fetch.wait.max.ms": 50, "log_level": 0})
        starts = spans_of(bootstrap, [topic]).items()
        self._consumer.assign([TopicPartition(*partition, span.begin) for partition, span in starts])

    def close(self) -> None:
        self._consumer.close()

    def read(self, seconds: float) -> list[Event]:
        """Return the events that are new; wait up to `seconds` for the first."""
        events: list[Event] = []
        for message in chain.from_iterable(few_messages(self._consumer, seconds)):
            error = message.error()
            if error is None and isinstance(event := decode_event(message.value()), Event):
                events.append(event)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise BrokerError(f"the events cannot be read: {error.str()}") from KafkaException(error)
        return events
