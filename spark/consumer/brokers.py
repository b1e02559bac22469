"""Ask the brokers about topics and progress, and read ranges of records: all that the source needs of Kafka.

`Lookup` belongs to the source's process at the driver. By the sidecar's `Cluster` it asks whether the level topics
exist and carry append times, where their offsets are, and how far a consumer group is. A batch asks three questions,
each of which is one request to each broker, however many partitions there are.

`read` runs on the workers. It reads from one offset up to another, and only committed records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster, CommittedOffsets, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Offset, Span
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import COORDINATOR, passing, raise_partition_errors, retry_transient
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.sidecar.kafka.scan import Bounds, ScanClient, partition_of
from reconsume.spark.consumer.offsets import NO_LATER, PartitionName, Range
from reconsume.spark.consumer.record import REPLACED
from reconsume.spark.errors import NoAnswerError
from reconsume.topics.names import canonical_delay
from reconsume.topics.retry_headers import Headers

STAMP = "message.timestamp.type"
APPEND = "LogAppendTime"
CLIENT = "reconsume-spark"
"""The name of our clients on the brokers."""
COMMITTED_WITHIN = 15.0
"""Seconds for which a commit is tried while the group's coordinator is elected or loads."""


class LevelTopicError(RuntimeError):
    """A level topic is missing, or cannot be read by time. An operator must correct it."""


class Lookup:
    """Requests about the topics in `levels` (topic to delay in ms; of the ready topic it is 0), and about progress.

    `client` holds librdkafka's settings. All methods raise BrokerError if the brokers do not answer within seconds.
    """

    def __init__(self, client: Mapping[str, str], levels: Mapping[str, int]) -> None:
        self._cluster = Cluster(client, CLIENT)
        self._required = frozenset(levels)
        self._levels = dict(levels)

    def all_topics(self) -> list[str]:
        """Return the topics that this user sees. Raises NoAnswerError if the brokers do not answer within 10 s."""
        try:
            return sorted(self._cluster.topic_names())
        except BrokerError as error:
            raise NoAnswerError(f"Kafka does not answer: {error}") from error

    def partitions(self, topics: Collection[str]) -> list[PartitionName]:
        """Return every partition of those of the topics that exist, sorted."""
        return sorted(one for topic in self._cluster.visible(topics).values() for one in topic.all_partitions)

    def committed(self, group: str, partitions: Collection[PartitionName]) -> dict[PartitionName, int]:
        """Return the progress of a consumer group, where it has any, once no open transaction may change it."""
        with of_group(group), CommittedOffsets(self._cluster, group, stable=True) as reader:
            return {(one.topic, one.partition): one.offset for one in reader.read(partitions)}

    def commit(self, group: str, offsets: Mapping[PartitionName, int]) -> None:
        """Write the progress of a consumer group that has no members."""
        if not offsets:
            return
        consumer = make_client(Consumer, reader_config(self._cluster.kafka, group, CLIENT))
        wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            kept = retry_transient(
                lambda: consumer.commit(offsets=wanted, asynchronous=False), COMMITTED_WITHIN, passing(COORDINATOR)
            )
            raise_partition_errors(kept or [])
        except KafkaException as error:
            with of_group(group):
                raise self._cluster.fault(f"the progress of group {group}", error) from error
        finally:
            consumer.close()

    def other_levels(self, prefixes: Sequence[str]) -> dict[str, int]:
        """Return the topics that exist and are levels by their names, but are not known yet, with their delays in ms.

        The name of a level is one of the prefixes and a delay.
        """
        names = self._cluster.topic_names() - self._levels.keys()
        delays = ((name, canonical_delay(name, prefix)) for name in sorted(names) for prefix in prefixes)
        return {name: delay for name, delay in delays if delay is not None}

    def add(self, levels: Mapping[str, int]) -> None:
        """Look at these level topics too. They may be deleted at any time."""
        self._levels |= levels

    def topics(self) -> tuple[list[PartitionName], dict[str, str]]:
        """Return every partition of the level topics, sorted, and the topics' ids by name.

        Raises LevelTopicError, which names the topics, if topics are missing that the job began with.
        """
        topics = self._cluster.visible(self._levels)
        if missing := sorted(self._required - topics.keys()):
            raise LevelTopicError(f"missing level topics: {', '.join(missing)}; `reconsume topics apply` makes them")
        partitions = sorted(one for topic in topics.values() for one in topic.all_partitions)
        return partitions, {name: topic.id for name, topic in topics.items()}

    def check_stamps(self, topics: Collection[str]) -> None:
        """Raise LevelTopicError if one of these level topics does not carry append times.

        Only with append times are the due records a prefix of a partition; where nothing waits, all are. The client
        needs the right to describe the topics' configuration.
        """
        levels = self._cluster.find_topics(name for name in topics if self._levels.get(name, 1))
        if wrong := sorted(name for name, topic in levels.items() if topic.config.get(STAMP) != APPEND):
            raise LevelTopicError(
                f"{STAMP} must be {APPEND}, and it is not for {', '.join(wrong)}: "
                "what is due could not be told from what is not; `reconsume topics apply` mends it"
            )

    def lows(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, int]:
        """Return the first offset of each partition."""
        return self._offsets(partitions, Offset.BEGIN)

    def ends(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, int]:
        """Return the last stable offset of each partition. Below it no transaction is open."""
        return self._offsets(partitions, Offset.END)

    def cuts(self, partitions: Sequence[PartitionName], now: int) -> dict[PartitionName, int]:
        """Return the first offset of each partition whose delay is not over at `now` (epoch ms), or NO_LATER (−1)."""
        times = {one: now - delay for one in partitions if (delay := self._levels[one[0]])}
        return dict.fromkeys(partitions, NO_LATER) | self._offsets(times, times)

    def firsts_at(self, partitions: Sequence[PartitionName], at: int) -> dict[PartitionName, int]:
        """Return the first offset of each partition at or after a time (epoch ms); NO_LATER if there is none."""
        return self._offsets(partitions, at)

    def _offsets(
        self, partitions: Collection[PartitionName], which: Offset | int | Mapping[PartitionName, int]
    ) -> dict[PartitionName, int]:
        return {one: listed.offset for one, listed in self._cluster.offsets(partitions, which).items()}


@contextmanager
def of_group(group: str) -> Iterator[None]:
    """Raise PermissionError in place of a DeniedError, with the right that is missing."""
    try:
        yield
    except DeniedError as error:
        text = f"this user may not see or keep the progress of the consumer group {group} (READ on it)"
        raise PermissionError(text) from error


# --- reading ---------------------------------------------------------------------------------------------------------

STALL = 60.0
"""Seconds without a record of a range, after which the task fails and Spark starts it again."""

Row: TypeAlias = tuple[str, int, int, int, bytes | None, bytes | None, Headers]
"""Topic, partition, offset, timestamp (epoch ms), key, value, headers."""


def read(client: Mapping[str, str], ranges: Sequence[Range], stall: float = STALL) -> Iterator[Row]:
    """Yield every committed record of the ranges, in the order of each partition. `stall`: seconds without any.

    Raises BrokerError if a range cannot be read, or if retention has deleted some of it. The batch is then repeated.
    """
    spans = {(one.topic, one.partition): Span(one.start, one.end) for one in ranges}
    with ScanClient(client, client.get("group.id", CLIENT), CLIENT) as reader:
        scan = reader.scan(spans, Bounds(patience=stall), expected=f"the batch of {', '.join(map(str, spans))}")
        for message in scan:
            yield (*partition_of(message), message.offset() or 0, message.timestamp()[1], *content_of(message))
    if scan.overtaken:
        raise BrokerError(f"records of the batch were deleted before they were read: {sorted(scan.overtaken)}")


def content_of(message: Message) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers.

    If the key of a header is not UTF-8, there is one header that marks this, as the Java client has it.
    """
    try:
        headers = read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        headers = [(REPLACED, None)]
    return message.key(), message.value(), headers
