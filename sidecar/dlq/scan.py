"""Read offset spans of the dead letter topics, or of a queue, record by record, and track the progress."""

from __future__ import annotations

import time
from collections.abc import Iterator

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.topics import CLIENT, DlqTopics, Layout
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, partition_of

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
        self._client = ScanClient(topics.kafka, topics.names.redrive_group, CLIENT, Fetches.UNTIL_GAP)

    @property
    def rate(self) -> float:
        """The number of records read per second."""
        return self.read / max(time.monotonic() - self._began, 1e-3)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        for message in self._client.scan(self._layout, Bounds(SILENCE), expected="the records"):
            self.read += 1
            yield to_record(message, Partition(*partition_of(message)), 0, self._reading)
        self.complete = True
