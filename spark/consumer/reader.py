"""Reads ranges of the level topics, on a worker: from an offset, up to an offset, only what is committed."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark.consumer.offsets import Place, Range
from spark.consumer.record import REPLACED
from topics.headers import Headers

STALL = 60.0
"""Seconds without a record of a range after which the task fails, and Spark starts it anew."""
WAIT, TOGETHER = 0.1, 1_000

Row: TypeAlias = tuple[str, int, int, int, bytes | None, bytes | None, Headers]
"""Topic, partition, offset, timestamp (epoch ms), key, value, headers."""

# Never a plain `message.headers()` in hot code: on a key that is not UTF-8 the client raises, the specialised call of
# Python 3.11–3.13 misses it, and the process ends with a segmentation fault (confluent-kafka 2.16).
read_headers: Callable[[Message], Headers | None] = operator.methodcaller("headers")


class ReadError(RuntimeError):
    """A range could not be read; the batch fails and is repeated."""


def read(client: Mapping[str, str], ranges: Sequence[Range]) -> Iterator[Row]:
    """Every committed record of the ranges, in the order of each partition. Raises ReadError or KafkaException."""
    consumer = Consumer(reader_config(client))
    left: dict[Place, int] = {(part.topic, part.partition): part.end for part in ranges}
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in ranges])
        patience = time.monotonic() + STALL
        while left:
            # Two calls: `consume(n, wait)` waits to the end of `wait` unless all n are there.
            messages = consumer.consume(1, WAIT)
            messages = messages + consumer.consume(TOGETHER, 0) if messages else messages
            if messages:
                patience = time.monotonic() + STALL
            elif time.monotonic() > patience:
                raise ReadError(f"nothing came for {STALL:g} s of {', '.join(map(str, left))}")
            for message in messages:
                if (row := row_of(message, left)) is not None:
                    yield row
    finally:
        consumer.close()


def reader_config(client: Mapping[str, str]) -> dict[str, object]:
    """The settings of a consumer that is told what to read, and neither joins a group nor commits."""
    return {
        # The default of 1 000 stalls the fetcher a second each time its queue is full.
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
        **client,
        "group.id": client.get("group.id", "reconsume-spark-levels"),
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        # A lost offset is an error: the next batch begins behind it, and counts it.
        "auto.offset.reset": "error",
        # The last offsets of a range may be markers of transactions: then only this event says that all is read.
        "enable.partition.eof": True,
    }


def row_of(message: Message, left: dict[Place, int]) -> Row | None:
    """The record, if it is of a range that is `left` to read; what the message ends is taken out of `left`."""
    place, error, offset = (message.topic() or "", message.partition() or 0), message.error(), message.offset() or 0
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        check(error, place)
        return None
    end = left.get(place)
    if end is None:
        return None
    # At the end of a partition the offset is that of the next record, and so it may be beyond the range at once.
    if offset + (error is None) >= end:
        del left[place]
    if error is not None or offset >= end:
        return None
    return (*place, offset, message.timestamp()[1], message.key(), message.value(), headers_of(message))


def headers_of(message: Message) -> Headers:
    """The headers; where a key is not UTF-8 one that says so, as the Java client's decoding does."""
    try:
        return read_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return [(REPLACED, None)]


def check(error: KafkaError, place: Place) -> None:
    """Raise what ends the reading; what the client mends by itself is passed over, and limited by STALL."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise ReadError(f"{place[0]}[{place[1]}] has been deleted up to behind the batch: {error.str()}")
    # It also looks for the coordinator of a group that it never joins; the right for that is not needed.
    if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)
