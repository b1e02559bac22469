"""Violations written by hand into a group's topics, each with a main record of its own, for an audit to find.

The progress is committed as a sidecar does; nothing here uses the audit's code.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.topics.dead_letter_headers import dead_letter_headers
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, Out, Row, dump, produce

OWN: tuple[tuple[str, bytes | None], ...] = (("a", b"1"), ("b", None), ("a", b"\xff"))
KEY = b"key"


class Landing:
    """A record on its way; `place` waits until the broker has it."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._place = ""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self._place = f"{self._topic}:{message.partition()}:{message.offset()}"

    @property
    def place(self) -> str:
        """`topic:partition:offset`."""
        assert self._producer.flush(SECONDS) == 0
        return self._place


class Planter:
    """Writes the copies, dead letters and events of made-up lives; all of partition 0 of every topic."""

    def __init__(self, group: GroupTopics) -> None:
        self.group = group
        self.began = time.time_ns() // 1_000_000
        self._producer = Producer({"bootstrap.servers": group.bootstrap, "linger.ms": 0})

    def mains(self, count: int, partition: int = 0) -> list[Row]:
        """So many records of the main topic."""
        outs = [Out(b"value %d" % number, KEY, OWN, partition) for number in range(count)]
        produce(self.group.bootstrap, self.group.main, outs)
        return [row for row in dump(self.group.bootstrap, self.group.main) if row.partition == partition][-count:]

    def life(self, row: Row, times: int = 1, delay: int = 1_000, redrives: int = 0) -> RetryState:
        """What the headers of a retry say."""
        identity = f"{self.group.main}:{row.partition}:{row.offset}"
        due = self.began + delay
        return RetryState(identity, self.group.main, times, redrives, due, row.timestamp, self.began, "http-500")

    def copy(self, row: Row, life: RetryState, delay: int = 1_000, **changed: bytes | None) -> Landing:
        """A copy on the level topic of `delay` ms (0: the ready topic), with headers changed."""
        names = self.group.names
        topic = names.level(delay, self.group.main) if delay else names.ready
        headers = [
            (name, changed.get(name, value)) for name, value in render_retry_headers(life, self.group.group, topic)
        ]
        kept = tuple((name, value) for name, value in headers if value is not None)
        return self._put(topic, Out(row.value, row.key, (*OWN, *kept), 0))

    def dead(self, row: Row, life: RetryState) -> Landing:
        """A dead letter."""
        headers = [
            *render_retry_headers(life, self.group.group, self.group.dlq),
            *dead_letter_headers(life, self.group.group, 1),
        ]
        return self._put(self.group.dlq, Out(row.value, row.key, (*OWN, *headers), 0))

    def event(self, life: RetryState, state: State, at: int = 0, level: str | None = None) -> Landing:
        """An event, `at` ms after the begin."""
        topic, partition, offset = life.id.rsplit(":", 2)
        place = topic, int(partition), int(offset)
        event = Event(
            self.group.group,
            life.id,
            state,
            life.times,
            life.redrives,
            level,
            life.due_at,
            self.began + at,
            life.reason,
            *place,
            life.timestamp,
            life.first_failed_at,
            "planted",
            cycle=life.cycle,
        )
        return self.raw_event(encode_event(event), life.id.encode())

    def raw_event(self, value: bytes, key: bytes) -> Landing:
        """Anything on the events topic."""
        return self._put(self.group.names.events, Out(value, key, (), 0))

    def waits(self, life: RetryState, level: str = "1s") -> Landing:
        """The event of a retry that waits."""
        return self.event(life, State.WAITING_RETRY, 0, level)

    def settle(self) -> None:
        """Wait until the broker has all."""
        assert self._producer.flush(SECONDS) == 0

    def _put(self, topic: str, out: Out) -> Landing:
        landing = Landing(self._producer, topic)
        headers: list[tuple[str, str | bytes | None]] = list(out.headers)
        self._producer.produce(
            topic, out.value, out.key, out.partition, landing, timestamp=out.timestamp, headers=headers
        )
        return landing


class Done(NamedTuple):
    """How far a partition is done."""

    topic: str
    partition: int
    next: int


def commit(group: GroupTopics, lane: str, done: Sequence[Done]) -> None:
    """Commit progress for a lane that nobody runs."""
    client = Consumer({"bootstrap.servers": group.bootstrap, "group.id": lane, "enable.auto.commit": False})
    places = [
        TopicPartition(*source, following, encode(source, Progress(following, clean=True)))
        for source, following in ((Partition(topic, partition), following) for topic, partition, following in done)
    ]

    def committed() -> bool:
        try:
            return all(place.error is None for place in client.commit(offsets=places, asynchronous=False) or ())
        except KafkaException:  # a new broker's coordinator is loading
            return False

    try:
        until(committed, SECONDS, "the progress is committed")
    finally:
        client.close()
