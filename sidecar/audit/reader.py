"""Read topics for an audit: their first and last offsets, the committed progress, and every record between two offsets.

No group is joined and nothing is committed. Only committed records are read, up to the high watermark. The reader waits
for records that an open transaction holds back. If they never come, the partition is reported in `stuck`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.audit.facts import Number
from reconsume.sidecar.audit.parsing import TopicRecord
from reconsume.sidecar.audit.wanted import First, Pick
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import (
    ANSWER_SECONDS,
    CONNECTION,
    COORDINATOR,
    LEADER,
    OPEN_TRANSACTION,
    committed_of,
    passing,
    retry_transient,
    sentence_of,
)
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.sidecar.kafka.scan import Bounds, Fetches, Scan, ScanClient, partition_of

PATIENCE = 30.0
"""Seconds without a record after which an open transaction counts as hanging. Reconsume's transactions end, or are
ended, after 10 s."""
CLIENT = "reconsume-audit"

_TRANSIENT = passing(COORDINATOR, LEADER, OPEN_TRANSACTION, CONNECTION)

Offsets: TypeAlias = Mapping[Number, int]
Wanted: TypeAlias = Mapping[Number, Iterator[int]]
"""The offsets of each partition that are wanted, in rising order."""


class AuditKafka:
    """A reader of the cluster. A context manager. Every method raises BrokerError if the cluster does not answer."""

    def __init__(self, kafka: Mapping[str, str], group: str, patience: float = PATIENCE) -> None:
        """Create the clients. They read in the name of `group`, whose progress may be read. `patience`: seconds."""
        self._patience = patience
        self._kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        self._own = ScanClient(kafka, group, CLIENT)
        self._mains = ScanClient(kafka, group, CLIENT, Fetches.LITTLE)
        # Its watermarks are high watermarks, and its requests never wait for an open transaction.
        self._asking = make_client(
            Consumer, {**reader_config(kafka, group, CLIENT), "isolation.level": "read_uncommitted"}
        )
        self.seen: dict[Number, First] = {}
        """The timestamps of what was read of each partition."""
        self.overtaken: dict[Number, int] = {}
        """Partitions whose records were deleted before they could be read, with the first offset that was left."""
        self.stuck: dict[Number, int] = {}
        """Partitions that an open transaction holds back, with the offset at which it does."""

    def __enter__(self) -> AuditKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._own.close()
        self._mains.close()
        self._asking.close()

    def topics(self) -> dict[str, int]:
        """Return every topic that this user may see, with its number of partitions."""
        try:
            found = self._asking.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException as error:
            raise self._fault("the topics cannot be listed", error) from error
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def marks(self, partitions: Iterable[Number]) -> dict[Number, Span]:
        """Return where each partition begins and ends. The end includes records that are not committed yet."""
        try:
            return {
                partition: retry_transient(partial(self._mark, partition), ANSWER_SECONDS, passes)
                for partition in partitions
            }
        except KafkaException as error:
            raise self._fault("the offsets of the topics cannot be asked for", error) from error

    def _mark(self, partition: Number) -> Span:
        return Span(*self._asking.get_watermark_offsets(TopicPartition(*partition), timeout=ANSWER_SECONDS))

    def starts(self, marks: Mapping[Number, Span], since: int | None) -> dict[Number, int]:
        """Return the offsets to read from: the beginnings, or the first records at or after `since` (epoch ms)."""
        if since is None or not marks:
            return {partition: mark.begin for partition, mark in marks.items()}
        topic_partitions = [TopicPartition(*partition, since) for partition in marks]
        try:
            ask = partial(self._asking.offsets_for_times, topic_partitions, timeout=ANSWER_SECONDS)
            found = retry_transient(ask, ANSWER_SECONDS, passes)
        except KafkaException as error:
            raise self._fault("the offsets of a time cannot be asked for", error) from error
        offsets = {(partition.topic, partition.partition): partition.offset for partition in found}
        return {
            partition: mark.end if offsets[partition] < 0 else offsets[partition] for partition, mark in marks.items()
        }

    def progress(self, group: str, partitions: Iterable[Number], *, stable: bool) -> dict[Number, Progress]:
        """Return the group's committed progress, for the partitions that have one.

        `stable`: also wait for commits that are under way.
        """
        topic_partitions = [TopicPartition(*partition) for partition in partitions]
        if not topic_partitions:
            return {}
        level = "read_committed" if stable else "read_uncommitted"
        reader = make_client(Consumer, {**reader_config(self._kafka, group, CLIENT), "isolation.level": level})
        try:
            found = committed_of(reader, topic_partitions, self._patience, passes)
        except KafkaException as error:
            raise self._fault(f"the progress of group {group} cannot be asked for", error) from error
        finally:
            reader.close()
        return {
            (p.topic, p.partition): decode(Partition(p.topic, p.partition), p.offset, p.metadata)
            for p in found
            if p.offset >= 0
        }

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, starts: Offsets, ends: Offsets, wanted: Mapping[Number, Iterator[int]] | None = None
    ) -> Iterator[TopicRecord]:
        """Yield the committed records of the group's own topics from `starts` up to `ends`.

        With `wanted` (rising offsets): only these, of main topics.
        """
        client = self._own if wanted is None else self._mains
        picks = None if wanted is None else {partition: Pick(offsets) for partition, offsets in wanted.items()}
        spans = {partition: Span(starts[partition], end) for partition, end in ends.items()}
        scan = client.scan(spans, Bounds(self._patience))
        for message in scan:
            if scan.overtaken:
                self._note_overtaken(scan)
            if (row := self._taken(message, picks)) is not None:
                yield row
        self._note_overtaken(scan)
        self.stuck |= scan.left

    def _note_overtaken(self, scan: Scan) -> None:
        for partition in scan.overtaken:
            self.seen.pop(partition, None)
        self.overtaken |= scan.overtaken
        scan.overtaken.clear()

    def _taken(self, message: Message, picks: Mapping[Number, Pick] | None) -> TopicRecord | None:
        """Return the record if it is wanted."""
        partition, offset, timestamp = partition_of(message), message.offset() or 0, message.timestamp()[1]
        known = self.seen.get(partition)
        self.seen[partition] = First(timestamp if known is None else known.first, timestamp)
        if picks is not None and not picks[partition].takes(offset):
            return None
        return TopicRecord(*partition, offset, timestamp, message.key(), message.value(), headers_of(message))

    def _fault(self, what: str, error: KafkaException) -> BrokerError:
        code = error.args[0].code()
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return BrokerError(f"no broker of {self._servers} answered within {ANSWER_SECONDS:.0f} s: {what}")
        return BrokerError(f"{what}: {sentence_of(error)}")


def passes(error: KafkaError) -> bool:
    """Whether the same request may succeed a moment later."""
    return _TRANSIENT(error) or bool(error.retriable())


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Return the record's headers; None if a key is not UTF-8, which the client cannot read."""
    try:
        return read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return None
