"""What this instance tells of itself on the policy topic: what it subscribes to, and how its deliveries go.

It is told again before the others would take it for gone, at a change of the pace soon, and taken back at a clean stop.
All calls come from the thread of the policy topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sidecar.kafka.client_config import Config
from sidecar.kafka.credentials.registry import ClientCredentials
from topics.policy_record import PARTITION, PaceTold, SubscriptionRecord, instance_key, render_record

TELL_EVERY = 60.0
"""Seconds between two heartbeats, as between two looks: a third of the others' patience (SILENT_AFTER)."""
CHANGE_EVERY = 15.0
"""Seconds between two changes of the pace: in a storm every instance changes it, and every instance hears of all."""
FLUSH_WITHIN = 2.0
LATE = 60_000
"""ms from which on it is told soon that a retry is overdue: as long as the alert and the doctor wait."""


class InstanceInfo(NamedTuple):
    """What is told: the instance's name, tags by topic, and at the moment the pace (None: nothing is delivered) and by
    how many ms its most overdue retry is late."""

    instance: str
    subscription: Mapping[str, str]
    pace: Callable[[], PaceTold | None] = lambda: None
    overdue: Callable[[], int] = lambda: 0


class Heartbeat:
    """Tells it. `say` is given what goes wrong, as a sentence. Nothing is connected before the first word."""

    def __init__(
        self,
        writer: Config,
        credentials: ClientCredentials,
        topic: str,
        own: InstanceInfo,
        say: Callable[[str], None],
        change_every: float = CHANGE_EVERY,
    ) -> None:
        self._writer, self._credentials, self._topic = dict(writer), credentials, topic
        self._own, self._say, self._change_every = own, say, change_every
        self._producer: Producer | None = None
        self._told_at = -TELL_EVERY
        self._state: tuple[str | None, bool] = (None, False)

    @property
    def clients(self) -> list[Producer]:
        """The producer, once there is one."""
        return [] if self._producer is None else [self._producer]

    def renew(self) -> None:
        """Tell all again by a new producer, which has the newest keys."""
        self._producer, self._told_at = None, -TELL_EVERY

    def tell(self) -> None:
        """The heartbeat, at a look that has found the topic, unless it was told just now. Raises KafkaException."""
        self._tell(TELL_EVERY / 2)

    def turn(self, *, there: bool) -> None:
        """See to what is under way; while the topic is `there`, tell of another pace. Raises KafkaException."""
        if self._producer is None:
            return
        self._producer.poll(0)
        if there and self._present()[0] != self._state:
            self._tell(self._change_every)

    def _present(self) -> tuple[tuple[str | None, bool], PaceTold | None, int]:
        """The state whose change is told soon, and what is told with it."""
        pace, overdue = self._own.pace(), self._own.overdue()
        return (None if pace is None else pace.state, overdue >= LATE), pace, overdue

    def _tell(self, every: float) -> None:
        now = time.monotonic()
        if now - self._told_at < every:
            return
        self._told_at = now
        if self._producer is None:
            self._producer = Producer(self._credentials.newest(self._writer))
        self._state, pace, overdue = self._present()
        record = SubscriptionRecord(dict(self._own.subscription), time.time_ns() // 1_000_000, pace, overdue)
        self._write(self._producer, render_record(record))

    def _write(self, producer: Producer, value: bytes | None) -> None:
        def landed(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._say(f"the subscription cannot be told to the other instances: {error.str()}")

        try:
            producer.produce(self._topic, value, instance_key(self._own.instance), PARTITION, on_delivery=landed)
        except BufferError:
            self._say("the subscription cannot be told to the other instances: what was told before waits for Kafka")

    def take_back(self) -> None:
        """A clean stop: the others need not wait for three missing heartbeats."""
        if self._producer is not None:
            try:
                self._write(self._producer, None)
                self._producer.flush(FLUSH_WITHIN)
            except KafkaException as failure:
                self._say(f"the subscription cannot be taken back: {failure}")
