"""The real broker as the conformance tests use it."""

from __future__ import annotations

import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.core.record import Partition
from tests.support.deadline import until

SECONDS = 20.0


def unused_name(kind: str) -> str:
    """A name that nobody has used."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


class Broker:
    """The real broker as the twin uses it, over all examples: one producer of each kind."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._transactional = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": unused_name("twin"), "retry.backoff.ms": 5}
        )
        until(lambda: _prepared(self._transactional), SECONDS, "there is a transactional producer")
        self._open: Producer | None = None
        self._reader = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "twin", "isolation.level": "read_committed"}
        )

    def close(self) -> None:
        """End the client that reads."""
        self._reader.close()

    def append(self, place: Partition, count: int) -> None:
        """Plain records."""
        for _ in range(count):
            self._plain.produce(place.topic, b"v", partition=place.number)
        assert self._plain.flush(SECONDS) == 0

    def transact(
        self, place: Partition, count: int, committed: bool, offsets: list[TopicPartition], metadata: Any
    ) -> None:
        """One transaction: records, and offsets of a group."""
        producer = self._transactional
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(place.topic, b"v", partition=place.number)
        producer.flush(SECONDS)
        try:
            if offsets:
                producer.send_offsets_to_transaction(offsets, metadata, SECONDS)
        except KafkaException:
            producer.abort_transaction(SECONDS)
            raise
        (producer.commit_transaction if committed else producer.abort_transaction)(SECONDS)

    def hold(self, offset: TopicPartition, metadata: Any) -> None:
        """Begin a transaction over a group's offset, and leave it open."""
        self._open = producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": unused_name("open")})
        until(lambda: _prepared(producer), SECONDS, "there is a transactional producer")
        producer.begin_transaction()
        producer.send_offsets_to_transaction([offset], metadata, SECONDS)

    def let_go(self) -> None:
        """Abort the transaction that is open."""
        assert self._open is not None
        self._open.abort_transaction(SECONDS)
        self._open = None

    def await_end(self, place: Partition, end: int) -> None:
        """The markers are written a moment after the transaction's end is acknowledged."""

        def ended() -> bool:
            return self._reader.get_watermark_offsets(TopicPartition(*place), timeout=SECONDS)[1] == end

        until(ended, SECONDS, f"{place} ends at {end}")

    def cut(self, place: Partition, before: int) -> None:
        """Lose what lies below an offset."""
        for future in self.admin.delete_records([TopicPartition(*place, before)]).values():
            future.result(SECONDS)


def _prepared(producer: Producer) -> bool:
    """Whether a producer may begin; a broker that has just begun does not know its coordinators yet."""
    try:
        producer.init_transactions(SECONDS)
    except KafkaException as failure:
        if not failure.args[0].retriable():
            raise
        return False
    return True
