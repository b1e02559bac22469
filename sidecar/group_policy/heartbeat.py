"""Publish this instance on the policy topic: its subscription, and the pace of its deliveries.

A heartbeat is sent every 60 s, because the other instances drop an instance after 180 s. A change of the pace is sent
within 15 s; within a second whether the instance works, and what it obeys of what operators say: commands wait for
that. One that works answers another that does not: only a
heartbeat behind its own lets that one leave the group (`core/participation.py`). A clean stop deletes the record. All
calls come from the thread of the policy topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.state import ControlRecord
from reconsume.sidecar.kafka.client_config import Config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials
from reconsume.topics.instance_sums import InstanceSums
from reconsume.topics.policy_record import (
    PARTITION,
    InstanceHeard,
    ObeysTold,
    PaceTold,
    RefusedTold,
    ReleaseTold,
    SubscriptionRecord,
    instance_key,
    render_record,
)

TELL_EVERY = 60.0
"""Seconds between two heartbeats, as between two checks of the topics (LOOK_EVERY): a third of the time after which
others drop an instance (SILENT_AFTER)."""
CHANGE_EVERY = 15.0
"""Shortest time, in seconds, between two published changes of the pace. In a storm every instance changes its pace, and
every instance reads all changes."""
SOON_EVERY = 1.0
"""The same if the instance begins or ceases to work, or obeys something else."""
ANSWER_EVERY = 5.0
"""The same for answers to instances that do not work. A hundred of them that break together get one answer."""
FLUSH_WITHIN = 2.0
MOST_REFUSED = 16
"""Topics whose records the service rejects that a heartbeat names, so that it stays far below `LARGEST`."""
LATE = 60_000
"""ms by which a retry must be overdue to be published soon. The alert and the doctor wait as long."""


ControlState: TypeAlias = tuple[str | None, bool, frozenset[tuple[str, int]], bool]
"""What is published soon after it changes: the pace, whether retries are overdue, what the service rejects, and whether
something of the sums is urgent."""


class InstanceInfo(NamedTuple):
    """The data to publish: the instance's name, tags by topic, the present pace and overdue time.

    `pace` returns None if nothing is delivered. `overdue` returns by how many ms the most overdue retry is late. `well`
    returns whether the instance works; None if that is not known of its kind. `sums` returns what it saw in the last
    minutes, and `urgent` whether an operator needs them soon. `release`: what it runs. `refused` returns the topics
    whose records its service rejects. `lock_timeout` and `drain_timeout`: ms for which the release of a partition, and
    a stop, wait at most for a delivery. `obeys` returns what it obeys of what operators say; None if it has not read
    that yet. `retried` returns how many records are retried in place.
    """

    instance: str
    subscription: Mapping[str, str]
    pace: Callable[[], PaceTold | None] = lambda: None
    overdue: Callable[[], int] = lambda: 0
    well: Callable[[], bool | None] = lambda: None
    sums: Callable[[], InstanceSums | None] = lambda: None
    urgent: Callable[[], bool] = lambda: False
    release: ReleaseTold | None = None
    refused: Callable[[], tuple[RefusedTold, ...]] = tuple
    lock_timeout: int = 0
    drain_timeout: int = 0
    obeys: Callable[[], ObeysTold | None] = lambda: None
    retried: Callable[[], int] = lambda: 0


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
        self._state: ControlState = (None, False, frozenset(), False)
        self._soon: tuple[bool | None, ObeysTold | None] = (None, None)
        """What is published within a second after it changes: whether the instance works, and what it obeys."""
        self._asked = False
        """Whether another instance waits for a heartbeat behind its own."""

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
        if not there:
            return
        if (self._own.well(), self._own.obeys()) != self._soon:
            self._tell(min(SOON_EVERY, self._change_every))
        elif self._asked:
            self._tell(min(ANSWER_EVERY, self._change_every))
        elif self._present()[0] != self._state:
            self._tell(self._change_every)

    def hear(self, records: Iterable[ControlRecord]) -> None:
        """Note that another instance has just said that it does not work. Heartbeats of this one answer nothing."""
        for said in records:
            news = said.heard
            if isinstance(news, InstanceHeard) and news.instance != self._own.instance and news.record is not None:
                self._asked |= news.record.well is False and self._own.well() is not False

    def _present(self) -> tuple[ControlState, PaceTold | None, int]:
        """Return the state whose change is published soon, and the values that are published with it."""
        pace, overdue = self._own.pace(), self._own.overdue()
        # The first heartbeat often comes before the service was asked, and cannot say what keeps it away.
        state = None if pace is None else f"{pace.state} {pace.reason}" if pace.state == "waiting" else pace.state
        refused = frozenset((one.topic, one.status) for one in self._own.refused()[:MOST_REFUSED])
        return (state, overdue >= LATE, refused, self._own.urgent()), pace, overdue

    def _tell(self, every: float) -> None:
        now = time.monotonic()
        if now - self._told_at < every:
            return
        self._told_at, self._asked = now, False
        if self._producer is None:
            self._producer = make_client(Producer, self._credentials.newest(self._writer))
        self._state, pace, overdue = self._present()
        own = self._own
        self._soon = well, obeys = own.well(), own.obeys()
        record = SubscriptionRecord(
            dict(own.subscription),
            wall(),
            pace,
            overdue,
            well=well,
            release=own.release,
            lock_timeout=own.lock_timeout,
            drain_timeout=own.drain_timeout,
            all_refused=own.refused()[:MOST_REFUSED],
            sums=own.sums(),
            obeys=obeys,
            retried_in_place=own.retried(),
        )
        self._write(self._producer, render_record(record))

    def put_back(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Write records that a topic made anew lacks. Raises KafkaException."""
        for key, value in records:
            if self._producer is None:
                self._producer = make_client(Producer, self._credentials.newest(self._writer))
            self._write(self._producer, value, key)

    def _write(self, producer: Producer, value: bytes | None, key: bytes | None = None) -> None:
        def landed(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._say(f"this instance's subscription cannot be published: {error.str()}")

        try:
            producer.produce(self._topic, value, key or instance_key(self._own.instance), PARTITION, on_delivery=landed)
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
