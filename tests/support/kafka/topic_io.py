"""Writes and reads whole topics, independent of the code under test."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec  # type: ignore[attr-defined]  # re-exported without saying so
from confluent_kafka.cimpl import NewTopic

from tests.support.deadline import NotInTimeError, until

# Never `message.headers()`: after a few thousand calls CPython specialises it, no longer sees the exception that a
# key outside UTF-8 sets, and hands out a list that crashes the process when it is touched.
HEADERS = operator.methodcaller("headers")
SECONDS = 60.0
UNREADABLE: tuple[tuple[str, bytes | None], ...] = (("(a key is not UTF-8)", None),)
"""What stands for the headers that this client cannot read."""


class Out(NamedTuple):
    """A record to produce; `partition` −1 leaves the choice to the client, `timestamp` 0 (epoch ms) the time."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    timestamp: int = 0


class Row(NamedTuple):
    """A record as it lies in the topic."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int = -1
) -> None:
    """Create a topic and wait until every partition has a leader that serves; replication −1 is the default."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    admin.create_topics([new])[name].result(SECONDS)
    _until_all_serve(admin, name, partitions)


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Widen a topic to this many partitions and wait until every one has a leader that serves."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(SECONDS)
    _until_all_serve(admin, topic, total)


def _until_all_serve(admin: AdminClient, topic: str, partitions: int) -> None:
    def led() -> bool:
        seen = admin.list_topics(topic, timeout=SECONDS).topics[topic]
        return len(seen.partitions) == partitions and all(one.leader >= 0 for one in seen.partitions.values())

    until(led, SECONDS, f"every partition of {topic} has a leader")
    places = [TopicPartition(topic, number) for number in range(partitions)]
    until(lambda: serve(admin, places), SECONDS, f"every leader of {topic} serves")


def serve(admin: AdminClient, places: Sequence[TopicPartition]) -> bool:
    """Whether the leaders know that they are: a broker is named as one a moment before, and a record that a producer
    sends it then may be confirmed and not be there (seen once in some hundred starts under load)."""
    ends = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), request_timeout=SECONDS)
    with suppress(KafkaException):
        return all(end.result(SECONDS).offset >= 0 for end in ends.values())
    return False


def delete_topics(bootstrap: str, *topics: str) -> None:
    """Delete topics, and wait until they are gone.

    Kafka answers when its controller has noted it. A topic that is made anew at once stands beside the old one for a
    while, whose log still takes what is produced.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics(list(topics)).values():
        future.result(SECONDS)
    until(lambda: not admin.list_topics(timeout=SECONDS).topics.keys() & set(topics), SECONDS, f"{topics} are gone")


def produce(
    bootstrap: str, topic: str, records: Iterable[bytes | Out], properties: Mapping[str, object] | None = None
) -> list[tuple[int, int]]:
    """Produce in order and wait for the broker's word; the partition and offset of each. Raises KafkaException.

    To a policy topic all go to the control log, its first partition. `properties` are those of the client, beside ours.
    """
    outs = [record if isinstance(record, Out) else Out(record) for record in records]
    landed: dict[int, tuple[int, int]] = {}
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 2,
            **(properties or {}),
        }
    )
    for number, out in enumerate(outs):

        def landing(error: KafkaError | None, message: Message, number: int = number) -> None:
            if error is not None:
                raise KafkaException(error)
            landed[number] = (message.partition() or 0, message.offset() or 0)

        producer.produce(
            topic,
            value=out.value,
            key=out.key,
            partition=0 if topic.endswith("-POLICY") else out.partition,
            timestamp=out.timestamp,
            headers=list(out.headers),
            on_delivery=landing,
        )
        producer.poll(0)
    if left := producer.flush(SECONDS):
        raise NotInTimeError(f"{left} records for {topic} not confirmed within {SECONDS:g} s")
    return [landed[number] for number in range(len(outs))]


def dump(bootstrap: str, topic: str, read_committed: bool = True) -> list[Row]:
    """All records up to the end as of the call, by partition and offset.

    Transactions that are open at the call are waited for, unless `read_committed` is False. Kafka answers a commit
    first, and then writes the marks of its end into the partitions one after the other: a reader that comes at once
    would miss what is committed.
    """
    with _reader(bootstrap, read_committed=False) as reader:
        ends = _ends(reader, topic)
    with _reader(bootstrap, read_committed) as consumer:
        return _part(consumer, topic, ends)


def dump_part(bootstrap: str, topic: str, parts: Mapping[int, tuple[int, int]]) -> list[Row]:
    """As `dump`, of some partitions, each from an offset up to another; nothing beyond the last stable offset."""
    with _reader(bootstrap, read_committed=True) as consumer:
        return _part(consumer, topic, {p: part for p, part in parts.items() if part[0] < part[1]})


def _part(consumer: Consumer, topic: str, parts: Mapping[int, tuple[int, int]]) -> list[Row]:
    consumer.assign([TopicPartition(topic, partition, low) for partition, (low, _) in parts.items()])
    return _read(consumer, {partition: high for partition, (_, high) in parts.items()})


def open_topics(bootstrap: str, *topics: str) -> list[str]:
    """Those where a transaction hides records from readers."""
    with _reader(bootstrap, read_committed=True) as stable, _reader(bootstrap, read_committed=False) as high:
        return [topic for topic in topics if _ends(stable, topic) != _ends(high, topic)]


def _reader(bootstrap: str, read_committed: bool) -> Consumer:
    """It never joins and never commits: only `assign` is used."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "dump",
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )


def _ends(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """The first offset and the end of each partition that is not empty."""
    found = consumer.list_topics(topic, timeout=SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=SECONDS) for p in found.partitions}
    return {p: (low, high) for p, (low, high) in ends.items() if high > low}


def _read(consumer: Consumer, ends: dict[int, int]) -> list[Row]:
    rows: list[Row] = []
    missing = dict(ends)

    def all_read() -> bool:
        # Two calls: `consume(n, wait)` waits to the end unless all n are there.
        for message in consumer.consume(1, 0.1) + consumer.consume(9999, 0) if missing else ():
            partition, offset = message.partition() or 0, message.offset() or 0
            row = _row(message)
            if row is not None and offset < ends[partition]:
                rows.append(row)
            # A transaction marker may be the last: then only the end-of-partition event says that all is read.
            if offset + (row is not None) >= ends[partition]:
                missing.pop(partition, None)
        return not missing

    until(all_read, SECONDS, "the topic is read to its end")
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def _row(message: Message) -> Row | None:
    """The record, or None for the end-of-partition event. Raises KafkaException for any other error."""
    error = message.error()
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        return None
    return Row(
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        _headers(message),
    )


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    try:
        return tuple((key, value) for key, value in HEADERS(message) or ())
    except (SystemError, UnicodeDecodeError):
        return UNREADABLE
