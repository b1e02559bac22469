"""Read ranges of the level topics on a worker: from one offset up to another, and only committed records."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.spark.consumer.offsets import PartitionName, Range
from reconsume.spark.consumer.record import REPLACED
from reconsume.topics.client_rules import checked_client
from reconsume.topics.retry_headers import Headers

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


class ReadError(RuntimeError):
    """A range could not be read. The batch fails and is repeated."""


def read(client: Mapping[str, str], ranges: Sequence[Range]) -> Iterator[Row]:
    """Yield every committed record of the ranges, in the order of each partition.

    Raises ReadError or KafkaException.
    """
    consumer = checked_client(Consumer, reader_config(client))
    ends: dict[PartitionName, int] = {
        (offset_range.topic, offset_range.partition): offset_range.end for offset_range in ranges
    }
    try:
        consumer.assign(
            [TopicPartition(offset_range.topic, offset_range.partition, offset_range.start) for offset_range in ranges]
        )
        patience = time.monotonic() + STALL
        while ends:
            # Two calls, because `consume(n, wait)` waits for the whole `wait` unless all n records are there.
            messages = consumer.consume(1, WAIT)
            if not messages and time.monotonic() > patience:
                raise ReadError(f"nothing came for {STALL:g} s of {', '.join(map(str, ends))}")
            while messages:
                messages.reverse()
                while messages:
                    if (row := row_of(messages.pop(), ends)) is not None:  # each is let go before the next is read
                        yield row
                    del row
                patience = time.monotonic() + STALL
                messages = consumer.consume(MOST_MESSAGES, 0) if ends else []
    finally:
        consumer.close()


def reader_config(client: Mapping[str, str]) -> dict[str, object]:
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
