"""Publish this instance in the control log: the writer of its heartbeats, on the thread that follows the log.

A heartbeat is sent every 60 s, because the other instances drop an instance after 180 s. A change of the pace, and of
what is retried in place or stalls (`Judged` in `observability/signals.py`), is sent within 15 s of being seen; within
a second whether the instance works, and what it obeys of what operators say: commands wait for that. One that works
answers another that does not: only a heartbeat behind its own lets that one leave the group
(`core/participation.py`). A clean stop deletes the record.

The follower (`follower.py`) says when a heartbeat may be written at all: not before the log was read to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.state import ControlRecord
from reconsume.sidecar.kafka.client_config import Config
from reconsume.sidecar.kafka.clients import ClientCredentials, make_client
from reconsume.sidecar.observability.signals import Judged, Signals
from reconsume.topics.policy_record import (
    PARTITION,
    InstanceHeard,
    ObeysTold,
    PaceTold,
    RefusedTold,
    SubscriptionRecord,
    fitted,
    instance_key,
    render_record,
)

TELL_EVERY = 60.0
"""Seconds between two heartbeats, as between two checks of the topics (LOOK_EVERY of `follower.py`): a third of the
time after which others drop an instance (SILENT_AFTER)."""
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


PublishedState: TypeAlias = tuple[str | None, bool, frozenset[tuple[str, int]], Judged | None]
"""What is published soon after it changes: the pace, whether retries are overdue, what the service rejects, and the
news of the last minutes."""


class InstanceInfo(NamedTuple):
    """The data to publish: the instance's name, what never changes (`fixed`), and the present pace and overdue time.

    `pace` returns None if nothing is delivered. `overdue` returns by how many ms the most overdue retry is late. `well`
    returns whether the instance works; None if that is not known of its kind. `signals`: what it saw in the last
    minutes; None if nobody looks. `refused` returns the topics whose records its service rejects. `obeys` returns what
    it obeys of what operators say; None if it has not read that yet.
    """

    instance: str
    fixed: SubscriptionRecord
    pace: Callable[[], PaceTold | None] = lambda: None
    overdue: Callable[[], int] = lambda: 0
    well: Callable[[], bool | None] = lambda: None
    signals: Signals | None = None
    refused: Callable[[], tuple[RefusedTold, ...]] = tuple
    obeys: Callable[[], ObeysTold | None] = lambda: None

    def urgent(self) -> tuple[bool | None, ObeysTold | None, bool]:
        """Return what is published within a second after it changes: whether the instance works, what it obeys, and
        whether a key is blocked."""
        return self.well(), self.obeys(), self.signals is not None and self.signals.blocks


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
        self._state: PublishedState = (None, False, frozenset(), None)
        self._soon: tuple[bool | None, ObeysTold | None, bool] = (None, None, False)
        """`urgent`, as it was published last."""
        self._asked = False
        """Whether another instance waits for a heartbeat behind its own."""
        self._is_unreached = False
        """Whether the producer has reached no broker in time: it may have lost the cluster (`kafka/cut_off.py`)."""

    @property
    def clients(self) -> list[Producer]:
        """The producer, if there is one yet."""
        return [] if self._producer is None else [self._producer]

    def renew(self) -> None:
        """Publish everything again, by a new producer with the newest credentials."""
        self._producer, self._told_at, self._is_unreached = None, -TELL_EVERY, False

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
        if self._is_unreached:
            self.renew()
            return
        if not there:
            return
        if self._own.urgent() != self._soon:
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

    def _present(self) -> tuple[PublishedState, PaceTold | None, int]:
        """Return the state whose change is published soon, and the values that are published with it."""
        pace, overdue = self._own.pace(), self._own.overdue()
        state = None if pace is None else f"{pace.state} {pace.cause} {pace.idle_since is not None}"
        if pace is not None and pace.state == "waiting":
            # The first heartbeat often comes before the service was asked, and cannot say what keeps it away.
            state = f"{pace.state} {pace.reason}"
        refused = frozenset((one.topic, one.status) for one in self._own.refused()[:MOST_REFUSED])
        return (state, overdue >= LATE, refused, self._news()), pace, overdue

    def _news(self) -> Judged | None:
        return None if self._own.signals is None else self._own.signals.news()

    def _tell(self, every: float) -> None:
        now = time.monotonic()
        if now - self._told_at < every:
            return
        self._told_at, self._asked = now, False
        if self._producer is None:
            self._producer = make_client(Producer, self._credentials.newest(self._writer))
        own, signals = self._own, self._own.signals
        if signals is not None:  # what one heartbeat says is of one moment: no outage with sums from before it
            signals.refresh()
        self._state, pace, overdue = self._present()
        self._soon = own.urgent()
        well, obeys, _ = self._soon
        record = replace(
            own.fixed,
            at=wall(),
            pace=pace,
            overdue=overdue,
            well=well,
            all_refused=own.refused()[:MOST_REFUSED],
            sums=None if signals is None else signals.sums,
            obeys=obeys,
            retried_in_place=0 if signals is None else signals.retried(),
            in_place=() if signals is None else signals.in_place,
        )
        self._write(self._producer, render_record(fitted(record)))

    def put_back(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records that the topic lacks; None deletes one. Raises KafkaException."""
        for key, value in records:
            if self._producer is None:
                self._producer = make_client(Producer, self._credentials.newest(self._writer))
            self._write(self._producer, value, key)

    def _write(self, producer: Producer, value: bytes | None, key: bytes | None = None) -> None:
        def landed(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._is_unreached |= error.code() == KafkaError._MSG_TIMED_OUT
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
