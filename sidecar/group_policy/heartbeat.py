"""Publish this instance on the policy topic: its subscription, and the pace of its deliveries.

A heartbeat is sent every 60 s, because the other instances drop an instance after 180 s. A change of the pace is sent
within 15 s. A clean stop deletes the record. All calls come from the thread of the policy topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sidecar.clock import wall
from sidecar.kafka.client_config import Config
from sidecar.kafka.credentials.registry import ClientCredentials
from topics.policy_record import PARTITION, PaceTold, SubscriptionRecord, instance_key, render_record

TELL_EVERY = 60.0
"""Seconds between two heartbeats, as between two checks of the topics (LOOK_EVERY): a third of the time after which
others drop an instance (SILENT_AFTER)."""
CHANGE_EVERY = 15.0
"""Shortest time, in seconds, between two published changes of the pace. In a storm every instance changes its pace, and
every instance reads all changes."""
FLUSH_WITHIN = 2.0
LATE = 60_000
"""ms by which a retry must be overdue to be published soon. The alert and the doctor wait as long."""


class InstanceInfo(NamedTuple):
    """The data to publish: the instance's name, tags by topic, the present pace and overdue time.

    `pace` returns None if nothing is delivered. `overdue` returns by how many ms the most overdue retry is late.
    """

    instance: str
    subscription: Mapping[str, str]
    pace: Callable[[], PaceTold | None] = lambda: None
    overdue: Callable[[], int] = lambda: 0


class Heartbeat:
    """The publisher of this instance's record. `say` is called with each problem, as a sentence.

    No client is made before the first heartbeat.
    """

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
        """The producer, if there is one yet."""
        return [] if self._producer is None else [self._producer]

    def renew(self) -> None:
        """Publish everything again, by a new producer with the newest credentials."""
        self._producer, self._told_at = None, -TELL_EVERY

    def tell(self) -> None:
        """Publish the heartbeat, unless it was just published. Raises KafkaException.

        It is called when a check has found the topic.
        """
        self._tell(TELL_EVERY / 2)

    def turn(self, *, there: bool) -> None:
        """Serve the producer. While the topic is `there`, publish another state. Raises KafkaException."""
        if self._producer is None:
            return
        self._producer.poll(0)
        if there and self._present()[0] != self._state:
            self._tell(self._change_every)

    def _present(self) -> tuple[tuple[str | None, bool], PaceTold | None, int]:
        """Return the state whose change is published soon, and the values that are published with it."""
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
        record = SubscriptionRecord(dict(self._own.subscription), wall(), pace, overdue)
        self._write(self._producer, render_record(record))

    def _write(self, producer: Producer, value: bytes | None) -> None:
        def landed(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._say(f"this instance's subscription cannot be published: {error.str()}")

        try:
            producer.produce(self._topic, value, instance_key(self._own.instance), PARTITION, on_delivery=landed)
        except BufferError:
            self._say("this instance's subscription cannot be published: the previous heartbeat still waits for Kafka")

    def take_back(self) -> None:
        """Delete this instance's record at a clean stop, so that others need not wait for three missing heartbeats."""
        if self._producer is not None:
            try:
                self._write(self._producer, None)
                self._producer.flush(FLUSH_WITHIN)
            except KafkaException as failure:
                self._say(f"this instance's subscription cannot be deleted: {failure}")
