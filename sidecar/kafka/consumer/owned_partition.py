"""One partition that is assigned to a consumer, as the consumer's thread knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.partition import FetchedRecords, WantedFetch
from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.start_offsets import Start

Key: TypeAlias = tuple[str | None, int | None]
"""Topic and partition as a message gives them. The client's types allow None; a record never has it."""


@dataclass(slots=True)
class OwnedPartition:
    """One assigned partition.

    `awaits`: the start that is not known for sure before the first message; None once the lane knows it. `wanted`: what
    the lane has stated last.
    """

    partition: Partition
    wanted: WantedFetch
    log: LogId | None = None
    """The log that is read, as Kafka told before the first fetch; None: it has not told."""
    awaits: Start | None = None
    sought: int | None = None
    """The offset of the last seek or start, until a message comes: an error that is older may still be queued."""
    last: int = -1
    """The last offset that is known to have been read."""
    last_at_ms: int | None = None
    """Of a level: the greatest timestamp (epoch ms) of what was read, as in `Progress`."""
    told_end: bool = False
    """Of a main topic: whether the lane was told of an end of the log in this epoch."""
    ended: tuple[int, int] = (-1, -1)
    """The last offset that had been read when the client last said that the log ends, and where it ended."""
    arrivals: int = 0
    """How often something has come of it: records, or an end."""

    @property
    def epoch(self) -> int:
        """Under which assignment it is owned."""
        return self.wanted.epoch

    @property
    def seek_count(self) -> int:
        """How often it was sought under this assignment."""
        return self.wanted.seek_count

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition in the client's type."""
        return TopicPartition(*self.partition)

    @property
    def position(self) -> int:
        """The offset that is to be read next."""
        if self.sought is not None:
            return self.sought
        after, end = self.ended  # behind the last record there may be markers of transactions
        return max(self.last + 1, end) if after == self.last else self.last + 1

    def begin_run(self) -> None:
        """Note that something has come: what was sought is reached."""
        self.sought = None
        self.arrivals += 1

    def is_behind_gap(self, offset: int) -> bool:
        """Return whether offsets are missing between what was read, or sought, and this one."""
        return offset > (self.last + 1 if self.sought is None else self.sought)

    def note_end(self, offset: int) -> bool:
        """Note that the log ends at `offset`; return whether the lane knows that without being told, of a main topic.

        The client says so after each record at a low rate. It is news once in an epoch (`suspects.py`), and if
        markers of transactions follow the last record.
        """
        known = self.told_end and self.sought is None and offset == self.last + 1
        self.told_end, self.ended = True, (self.last, offset)
        self.arrivals += 1
        return known


def with_edges(consumer: Consumer, owned: OwnedPartition, run: FetchedRecords) -> FetchedRecords:
    """Note the last record, and return a level's records with the greatest timestamp read and the end of the log.

    The end is what the last fetch reported: this costs no request.
    """
    if run.records:
        owned.last = run.records[-1].offset
        owned.last_at_ms = max(owned.last_at_ms or 0, *(record.timestamp for record in run.records))
    return run._replace(high=high_of(consumer, owned), last_at_ms=owned.last_at_ms)


def high_of(consumer: Consumer, owned: OwnedPartition) -> int:
    """Return the high watermark that the last fetch of a partition reported; 0 if there was none.

    Of a client that reads committed records it is not the last stable offset, which requests would return.
    """
    try:
        _, high = consumer.get_watermark_offsets(owned.topic_partition, cached=True)
    except KafkaException:  # the client has let the partition go, and says so before its callback does
        return 0
    return max(0, high)
