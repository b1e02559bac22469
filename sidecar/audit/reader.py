"""Read topics for an audit: every record between two offsets, and what of them could not be read.

No group is joined and nothing is committed. Only committed records are read, up to the high watermark. The reader waits
for records that an open transaction holds back. If they never come, the partition is reported in `stuck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Message

from reconsume.sidecar.audit.facts import Number
from reconsume.sidecar.audit.parsing import TopicRecord
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.sidecar.kafka.scan import Bounds, Fetches, Report, Scan, ScanClient, partition_of

PATIENCE = 30.0
"""Seconds without a record after which an open transaction counts as hanging. Reconsume's transactions end, or are
ended, after 10 s."""
CLIENT = "reconsume-audit"


class ReadTimes(NamedTuple):
    """The timestamps of the first and the last record that were read of a partition, epoch ms."""

    first: int
    last: int


class AuditReader:
    """Reads spans of topics, one after another. A context manager. Attributes grow with each span."""

    def __init__(self, kafka: Mapping[str, str], group: str, patience: float = PATIENCE) -> None:
        """Create the clients, in the name of `group`. `patience`: seconds."""
        self.seen: dict[Number, ReadTimes] = {}
        self.overtaken: dict[Number, int] = {}
        """Partitions whose records were deleted before they could be read, with the first offset that was left."""
        self.stuck: dict[Number, int] = {}
        """Partitions that an open transaction holds back, with the offset at which it does."""
        self._patience = patience
        self._own = ScanClient(kafka, group, CLIENT)
        self._mains = ScanClient(kafka, group, CLIENT, Fetches.LITTLE)

    def __enter__(self) -> AuditReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()
        self._mains.close()

    def read(
        self,
        spans: Mapping[Number, Span],
        wanted: Mapping[Number, Iterator[int]] | None = None,
        report: Report = lambda read, total: None,
    ) -> Iterator[TopicRecord]:
        """Yield the committed records of the group's own topics. Raises BrokerError.

        With `wanted`, the rising offsets of each partition: only these, of main topics.
        """
        picks = {partition: Pick(offsets) for partition, offsets in (wanted or {}).items()}
        scan = (self._own if wanted is None else self._mains).scan(spans, Bounds(self._patience), report=report)
        for message in scan:
            if scan.overtaken:
                self._note_overtaken(scan)
            partition, timestamp = partition_of(message), message.timestamp()[1]
            self.seen[partition] = ReadTimes(
                self.seen[partition].first if partition in self.seen else timestamp, timestamp
            )
            if wanted is None or picks[partition].takes(message.offset() or 0):
                yield record_of(message)
        self._note_overtaken(scan)
        self.stuck |= scan.left

    def _note_overtaken(self, scan: Scan) -> None:
        for partition in scan.overtaken:
            self.seen.pop(partition, None)
        self.overtaken |= scan.overtaken
        scan.overtaken.clear()


class Pick:
    """The wanted offsets of a partition, which are asked for in rising order."""

    def __init__(self, offsets: Iterator[int]) -> None:
        self._offsets = offsets
        self._next = next(offsets, None)

    def takes(self, offset: int) -> bool:
        """Move to the first wanted offset that is not below this one; return whether it is this one."""
        while self._next is not None and self._next < offset:
            self._next = next(self._offsets, None)
        return self._next == offset


def record_of(message: Message) -> TopicRecord:
    """Return a message as a plain value, without headers if the client cannot read them: a name is not UTF-8."""
    try:
        headers = read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        headers = None
    offset, timestamp = message.offset() or 0, message.timestamp()[1]
    return TopicRecord(*partition_of(message), offset, timestamp, message.key(), message.value(), headers)
