"""Groups for benchmarks of the view job: their topics, a load of events, and a reader of the rows of one of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import cluster
from benchmarks.spark_freshness import event_of, now
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import Source, group_specs

PREFIX = "life-"
KINDS = (Kind.EVENTS, Kind.VIEW)
PULSE_SECONDS = 0.1


def names_of(number: int) -> Names:
    """The names of one of the groups."""
    return Names(f"{PREFIX}{number}")


def make(bootstrap: str, numbers: Sequence[int]) -> None:
    """The topics of groups that the job reads and writes."""
    source = [Source("orders", 12, 1, 1_048_588, 1)]
    specs = [spec for number in numbers for spec in group_specs(names_of(number), source, (1_000,), rows=True)]
    topics = [NewTopic(s.name, s.partitions, s.replication, config=s.config) for s in specs if s.kind in KINDS]
    for first in range(0, len(topics), 30):
        cluster.make(bootstrap, topics[first : first + 30])
    admin, wanted = AdminClient({"bootstrap.servers": bootstrap}), {topic.topic for topic in topics}
    while not wanted <= admin.list_topics(timeout=60).topics.keys():  # a broker tells of thousands much later
        time.sleep(0.5)


def remove(bootstrap: str, number: int) -> None:
    """Delete these topics of a group."""
    names, admin = names_of(number), AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([names.events, names.view]).values():
        future.result(30)


def make_event(number: int, group: int) -> Event:
    """A first failure, of now."""
    return event_of(names_of(group).group, number, State.WAITING_RETRY)


class Load(threading.Thread):
    """Writes events: one to group 0 each PULSE_SECONDS, and `rate` a second spread over all groups."""

    def __init__(self, bootstrap: str, groups: int, rate: int) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self._groups, self._each = groups, round(rate * PULSE_SECONDS)
        self._ended = threading.Event()
        # A broker that has just made thousands of partitions may not tell of all of them yet.
        patience = {"topic.metadata.propagation.max.ms": 300_000, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 2, **patience})

    def run(self) -> None:
        """Write until ended."""
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due += PULSE_SECONDS
            self.write(0)
            for _ in range(self._each):
                self.write(self.written % self._groups)
            self._producer.poll(0)

    def write(self, group: int) -> None:
        """One event of a group."""
        event = make_event(self.written, group)
        self._producer.produce(names_of(group).events, encode_event(event), event.id)
        self.written += 1

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self.join()
        self._producer.flush(30)


class Rows(threading.Thread):
    """Notes when rows come into the view of a group."""

    def __init__(self, bootstrap: str, group: int) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "rows", "fetch.wait.max.ms": 10})
        self._topic, self._ended = names_of(group).view, threading.Event()
        self.came: list[float] = []
        """Seconds of the monotonic clock, of each row."""
        self.ages: list[int] = []
        """ms from an event's time to its row."""

    def run(self) -> None:
        """Read until ended."""
        partitions = list(self._consumer.list_topics(self._topic, timeout=10).topics[self._topic].partitions)
        self._consumer.assign([TopicPartition(self._topic, number, 0) for number in partitions])
        while not self._ended.is_set():
            for message in self._consumer.consume(1, 0.05) + self._consumer.consume(5_000, 0):
                if message.error() is None:
                    self.came.append(time.monotonic())
                    self.ages.append(now() - json.loads(message.value() or b"")["at"])
        self._consumer.close()

    def end(self) -> None:
        """Read no more."""
        self._ended.set()
        self.join()

    def longest_gap(self, since: float) -> float:
        """Seconds without a row, at most, since then and until now."""
        came = [since, *(at for at in self.came if at >= since), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(came))


@contextmanager
def reading(bootstrap: str, group: int) -> Iterator[Rows]:
    """The rows of a group while they are read."""
    rows = Rows(bootstrap, group)
    rows.start()
    try:
        yield rows
    finally:
        rows.end()
