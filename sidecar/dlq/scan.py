"""Read offset spans of the dead letter topics, or of a queue, record by record, and track the progress."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.topics import CLIENT, QUIET, DlqTopics, Layout
from reconsume.sidecar.kafka.client_config import follower_config, whole_fetches
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.range_reader import RangeReader, partition_of

SILENCE = 15.0
"""Seconds without a record or an end of a partition after which Kafka counts as unreachable."""


class Scan:
    """A reader of offset spans, to be iterated over once. Raises BrokerError.

    Each partition's records come in the order of their offsets. The caller closes it.
    """

    def __init__(self, topics: DlqTopics, layout: Layout, reading: Reading | None = None) -> None:
        """Begin to read. `reading`: reads our headers; None: nobody does here."""
        self.read = 0
        """Records read so far."""
        self.total = sum(span.end - span.begin for span in layout.values())
        """Offsets in all spans: there are at most as many records."""
        self.complete = False
        """Whether all spans were read to their ends."""
        self._layout, self._reading = layout, reading
        self._began = time.monotonic()
        config = follower_config(topics.kafka, topics.names.redrive_group, CLIENT)
        self._config = {**config, **QUIET}
        self._consumer = make_client(Consumer, self._config)

    @property
    def rate(self) -> float:
        """The number of records read per second."""
        return self.read / max(time.monotonic() - self._began, 1e-3)

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        reader = RangeReader(self._consumer, self._layout, lambda: make_client(Consumer, whole_fetches(self._config)))
        for message in reader.records(SILENCE):
            self.read += 1
            yield to_record(message, Partition(*partition_of(message)), 0, self._reading)
        reader.expect_all("the records", SILENCE)
        self.complete = True
