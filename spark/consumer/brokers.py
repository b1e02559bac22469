"""Ask the brokers about topics and progress, and read ranges of records: all that the source needs of Kafka.

`Lookup` belongs to the source's process at the driver. By the sidecar's `Cluster` it asks whether the level topics
exist and carry append times, where their offsets are, and how far a consumer group is. A batch asks three questions,
each of which is one request to each broker, however many partitions there are.

`read` runs on the workers. It reads from one offset up to another, and only committed records.

`ControlLog` reads partition 0 of the policy topic from where the last read ended, for `claim.py` and `following.py`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster, CommittedOffsets, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Offset
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import COORDINATOR, passing, raise_partition_errors, retry_transient
from reconsume.spark.consumer.offsets import NO_LATER, PartitionName, Range
from reconsume.spark.consumer.record import REPLACED
from reconsume.spark.errors import NoAnswerError
from reconsume.topics.client_rules import checked_client
from reconsume.topics.names import canonical_delay
from reconsume.topics.policy_record import PARTITION
from reconsume.topics.retry_headers import Headers

STAMP = "message.timestamp.type"
APPEND = "LogAppendTime"
CLIENT = "reconsume-spark"
"""The name of our clients on the brokers."""
QUIET = {"log_level": "4"}
"""librdkafka's default tells of each client that ends."""
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
WAIT, MOST_MESSAGES = 0.1, 4
"""Seconds that one call waits for a record, and the most records that the next call takes. The client parses the
headers of all of them at once: 100 000 headers, which take 300 KB in a topic, take 7 MB there. A call for 4 costs a
message 0.15 us more than one for 500."""

Row: TypeAlias = tuple[str, int, int, int, bytes | None, bytes | None, Headers]
"""Topic, partition, offset, timestamp (epoch ms), key, value, headers."""

# Never call `message.headers()` directly in hot code. On a key that is not UTF-8 the client raises. The specialised
# call of Python 3.11–3.13 misses this error, and the process ends with a segmentation fault (confluent-kafka 2.16).
read_headers: Callable[[Message], Headers | None] = operator.methodcaller("headers")


class ReadError(BrokerError):
    """A range could not be read. The batch fails and is repeated."""


def read(client: Mapping[str, str], ranges: Sequence[Range], stall: float = STALL) -> Iterator[Row]:
    """Yield every committed record of the ranges, in the order of each partition. `stall`: seconds without any.

    Raises ReadError or KafkaException.
    """
    consumer = checked_client(Consumer, range_config(client))
    ends: dict[PartitionName, int] = {
        (offset_range.topic, offset_range.partition): offset_range.end for offset_range in ranges
    }
    try:
        consumer.assign(
            [TopicPartition(offset_range.topic, offset_range.partition, offset_range.start) for offset_range in ranges]
        )
        patience = time.monotonic() + stall
        while ends:
            # Two calls, because `consume(n, wait)` waits for the whole `wait` unless all n records are there.
            messages = consumer.consume(1, WAIT)
            if not messages and time.monotonic() > patience:
                raise ReadError(f"nothing came for {stall:g} s of {', '.join(map(str, ends))}")
            while messages:
                messages.reverse()
                while messages:
                    if (row := row_of(messages.pop(), ends)) is not None:  # each is let go before the next is read
                        yield row
                    del row
                patience = time.monotonic() + stall
                messages = consumer.consume(MOST_MESSAGES, 0) if ends else []
    finally:
        consumer.close()


def range_config(client: Mapping[str, str]) -> dict[str, object]:
    """Return the settings of a consumer that reads assigned partitions, joins no group, and commits nothing."""
    return {
        # ms. The default of 1 000 stops the fetcher for a second each time its queue is full.
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
        **client,
        "group.id": client.get("group.id", "reconsume-spark-levels"),
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        # A deleted offset is an error here. The next batch begins behind it, and counts it.
        "auto.offset.reset": "error",
        # The last offsets of a range may be markers of transactions. Then only this event shows that all is read.
        "enable.partition.eof": True,
    }


def row_of(message: Message, ends: dict[PartitionName, int]) -> Row | None:
    """Return the record if it belongs to a range in `ends`, else None.

    A range that ends with this message leaves `ends`.
    """
    partition, error, offset = (message.topic() or "", message.partition() or 0), message.error(), message.offset() or 0
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        check(error, partition)
        return None
    end = ends.get(partition)
    if end is None:
        return None
    # At the end of a partition the offset is that of the next record, so it may already be beyond the range.
    if offset + (error is None) >= end:
        del ends[partition]
    if error is not None or offset >= end:
        return None
    return (*partition, offset, message.timestamp()[1], message.key(), message.value(), headers_of(message))


def headers_of(message: Message) -> Headers:
    """Return the record's headers.

    If a key is not UTF-8, return one header that marks this, as the Java client does.
    """
    try:
        return read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return [(REPLACED, None)]


def check(error: KafkaError, partition: PartitionName) -> None:
    """Raise the errors that end the reading. The client recovers from the others by itself, within STALL."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise ReadError(f"{partition[0]}[{partition[1]}] has been deleted up to behind the batch: {error.str()}")
    # The client also looks for the coordinator of a group that it never joins. It does not need the right for this.
    if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)


# --- the control log --------------------------------------------------------------------------------------------------

LOG_WITHIN = 5.0
"""Seconds that the brokers may take for one answer about the control log: a batch waits meanwhile."""


class LogRecord(NamedTuple):
    """A record of the control log; `at` is when it was appended (epoch ms)."""

    key: bytes | None
    value: bytes | None
    at: int
    offset: int = 0


class ControlLog:
    """A group's control log on its brokers, and the topics next to it. Its methods raise what Kafka's clients raise."""

    def __init__(self, client: Mapping[str, str], topic: str, within: float = LOG_WITHIN) -> None:
        """`client` holds librdkafka's settings, `within` the seconds for one answer. Nothing is asked yet."""
        self._client, self._at, self._within = {**QUIET, **client}, (topic, PARTITION), within
        self._lookup: Lookup | None = None
        """Made at first use: Spark Connect sends a follower to its server, and a Kafka client cannot be sent."""
        self._next = 0

    def news(self) -> Iterator[LogRecord]:
        """Yield the records that are new since the last call. Raises LookupError if the topic does not exist."""
        lookup, topic = self._lookup_now(), self._at[0]
        if self._at not in lookup.partitions([topic]):
            raise LookupError(f"{topic} does not exist")
        low, end = lookup.lows([self._at])[self._at], lookup.ends([self._at])[self._at]
        # A topic that was created again may be shorter.
        self._next = low if self._next > end else max(low, self._next)
        yield from self.until(end)

    def until(self, end: int) -> Iterator[LogRecord]:
        """Yield the records up to an offset, for which they are waited."""
        if self._next < end:
            for row in read(self._client, [Range(*self._at, self._next, end)], 2 * self._within):
                yield LogRecord(row[4], row[5], row[3], row[2])
                self._next = row[2] + 1
            self._next = end

    def lacks(self, topics: Collection[str]) -> bool:
        """Whether one of the topics does not exist."""
        return {topic for topic, _ in self._lookup_now().partitions(topics)} != set(topics)

    def _lookup_now(self) -> Lookup:
        self._lookup = self._lookup or Lookup(self._client, {})
        return self._lookup
