"""The client and its model side by side: each command goes to both, and what they show must be the same.

The real client fetches in threads of its own, so what it gives is taken as it comes, and the model says whether it may.
A partition of its own that nothing else touches, the beat, tells when the client has had its time: a record appended to
it now is in a later answer of the broker than everything that could be fetched before.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import consumer_config
from tests.sim.client_model import ClientModel, Event
from tests.sim.kafka_model import KafkaModel
from tests.sim.twin_broker import SECONDS, Broker, unused_name
from tests.support.deadline import until
from tests.support.kafka.topic_io import create_topic

IN_VAIN = 1.0
"""Seconds that a question is given that has no answer."""
EOF = "_PARTITION_EOF"
BEATS = 2
"""Records on the beat: the first may come with an answer that was asked for before the command."""


class Twin:
    """One topic of `partitions` and the beat, one client of a group that nobody joins, and their models."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        self.broker = broker
        self.topic, self.group = unused_name("twin"), unused_name("twin")
        create_topic(broker.bootstrap, self.topic, partitions + 1, replication=1)
        self.places = [Partition(self.topic, number) for number in range(partitions)]
        self._beat = Partition(self.topic, partitions)
        self.kafka = KafkaModel(lambda: 0, partitions + 1)
        self.kafka.create(self.topic)
        self.model = ClientModel(self.kafka, self.group, Random(0))
        self.real = Consumer(config(broker.bootstrap, self.group))
        self.consumed: dict[Partition, list[tuple[int | None, str]]] = defaultdict(list)
        """What was consumed of each partition: offset and error."""
        self.both(lambda client: client.incremental_assign([TopicPartition(*self._beat, 0)]))
        self.settle()

    def close(self) -> None:
        """End the real client."""
        self.real.close()

    # --- what happens to the logs ------------------------------------------------------------------------------------

    def append(self, number: int, count: int) -> None:
        """Plain records."""
        self.broker.append(self.places[number], count)
        for _ in range(count):
            self.kafka.send(self.places[number], None, b"v", [])

    def transact(self, number: int, count: int, committed: bool) -> None:
        """A transaction of records, committed or aborted."""
        self.broker.transact(self.places[number], count, committed, [], None)
        if committed:
            for _ in range(count):
                self.kafka.send(self.places[number], None, b"v", [])
        self.kafka.mark(self.places[number], 0 if committed else count)
        self.broker.await_end(self.places[number], self.kafka.logs[self.places[number]].end)

    def commit(self, number: int, offset: int) -> None:
        """The group's offset, by a transaction, as the product commits."""
        place = self.places[number]
        at = TopicPartition(*place, offset, "said")
        self.broker.transact(place, 0, True, [at], self.real.consumer_group_metadata())
        self.kafka.committed[self.group, place] = (offset, "said")

    def hold(self, number: int, offset: int) -> None:
        """A transaction over the group's offset stays open, as one of a pod that died."""
        at = TopicPartition(*self.places[number], offset, "said")
        self.broker.hold(at, self.real.consumer_group_metadata())
        self.kafka.hold(self.group, self.places[number])

    def let_go(self, number: int) -> None:
        """Kafka aborts it."""
        self.broker.let_go()
        self.kafka.let_go(self.group, self.places[number])

    def cut(self, number: int, before: int) -> None:
        """Lose the log below an offset; what was fetched already is consumed first, so that both know the same.

        Only while the partition is assigned: a client (2.16) that had it before, and gets it again at the beginning,
        fetches at the former beginning once. It says so by an error, as of any position that is not in the log.
        """
        toppar = self.model.toppars.get(self.places[number])
        if toppar is None or not toppar.assigned:
            return
        self.settle()
        before = min(before, self.kafka.logs[self.places[number]].end)
        self.broker.cut(self.places[number], before)
        self.kafka.logs[self.places[number]].cut(before)
        self._await_error(number)

    # --- what the client is told -------------------------------------------------------------------------------------

    def both(self, call: Callable[[Any], object]) -> None:
        """The same call of both: the same answer, or the same error."""
        real, model = outcome(call, self.real), outcome(call, self.model)
        assert real == model, f"the client says {real}, the model {model}"

    def assign(self, number: int, offset: int) -> None:
        """Begin at an offset or a logical one; a logical one is looked up before anything else happens."""
        self.both(lambda client: client.incremental_assign([self._at(number, offset)]))
        self._await_error(number)
        if offset < 0:
            self.beat()

    def assign_together(self, *numbers: int) -> None:
        """Begin with all of these at once, at the group's offsets."""
        self.both(lambda client: client.incremental_assign([self._at(number, OFFSET_STORED) for number in numbers]))
        self.beat()

    def ask_in_vain(self, number: int) -> None:
        """What is committed, while nobody may know."""
        self.both(lambda client: client.committed([self._at(number)], IN_VAIN))

    def unassign(self, number: int) -> None:
        """End."""
        self.both(lambda client: client.incremental_unassign([self._at(number)]))

    def pause(self, number: int) -> None:
        """Fetch no more."""
        self.both(lambda client: client.pause([self._at(number)]))

    def resume(self, number: int) -> None:
        """Fetch again."""
        self.both(lambda client: client.resume([self._at(number)]))
        self._await_error(number)

    def seek(self, number: int, offset: int) -> None:
        """Go on elsewhere."""
        self.both(lambda client: client.seek(self._at(number, offset)))
        self._await_error(number)

    def ask(self, number: int) -> None:
        """Where it is, what is committed, and what the log holds."""
        if self.kafka.logs[self.places[number]].markers:
            self.settle()  # when exactly a marker is consumed is nobody's business
        place = [self._at(number)]
        if (toppar := self.model.toppars.get(self.places[number])) and toppar.assigned:
            self.both(lambda client: [found.offset for found in client.position(place)])
        self.both(lambda client: [(found.offset, found.metadata or "") for found in client.committed(place, SECONDS)])
        self.both(lambda client: numbers(client, self._at(number, OFFSET_BEGINNING), self._at(number, OFFSET_END)))
        self.ask_ends(number)

    def ask_ends(self, number: int, seconds: float = SECONDS) -> None:
        """What the log holds, or that nobody says so in time."""
        place = self._at(number)
        self.both(lambda client: client.get_watermark_offsets(place, timeout=seconds, cached=False))

    def stray(self, number: int, offset: int) -> None:
        """Seek to what is not in the log, and wait until the client knows, without consuming what it says of it."""
        place = self._at(number, offset)
        until(lambda: outcome(lambda client: client.seek(place), self.real) == "_STATE", SECONDS, "it knows", step=0.1)
        self.model.seek(place)
        self.model.fetch()

    def _await_error(self, number: int) -> None:
        """Where the offset is not in the log, the client needs a moment to learn that, and is another one then."""
        self.model.fetch()
        toppar = self.model.toppars.get(self.places[number])
        if toppar is not None and toppar.assigned and not toppar.fetching:
            self.beat()

    def _at(self, number: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(*self.places[number], offset)

    # --- what the client gives ---------------------------------------------------------------------------------------

    def consume(self, most: int) -> None:
        """Take up to so many events; the model must have them next."""
        self._accept(self.real.consume(most, 0.1))

    def settle(self) -> None:
        """Consume until there is nothing more."""
        deadline = time.monotonic() + SECONDS
        self.model.fetch()
        while left := [place for place in self.places if (it := self.model.toppars.get(place)) and it.queue]:
            assert time.monotonic() < deadline, f"the client never gives what the model has of {left}"
            self._accept(self.real.consume(100, 0.02))
        self.beat()

    def beat(self) -> None:
        """Give the client's threads their time; what it consumes meanwhile is what the model has."""
        for _ in range(BEATS):
            self.broker.append(self._beat, 1)
            self.kafka.send(self._beat, None, b"v", [])
            deadline, toppar = time.monotonic() + SECONDS, self.model.toppars[self._beat]
            while toppar.consumed != self.kafka.logs[self._beat].end:
                assert time.monotonic() < deadline, "the beat stands still"
                self._accept(self.real.consume(100, 0.02))

    def _accept(self, messages: list[Message]) -> None:
        self.model.fetch()
        for message in messages:
            if message.topic() is None:
                continue  # about a broker, not about a partition
            source = Partition(message.topic() or "", message.partition() or 0)
            self._take(source, message.offset(), name_of(message))

    def _take(self, source: Partition, offset: int | None, error: str) -> None:
        toppar, end = self.model.toppars[source], self.kafka.logs[source].end
        queue, seen = toppar.queue, (offset, error)
        while queue and name_of(queue[0]) == EOF and queue[0].place != end and seen != (queue[0].place, EOF):
            self.model.take(toppar)  # the log grew on before the client looked
        if error == EOF and queue and seen != (queue[0].place, name_of(queue[0])):
            assert offset is not None
            assert (toppar.consumed or 0) <= offset <= (queue[0].place or 0), f"{source} has no end at {offset}"
            return  # the client looked while the log grew
        assert queue, f"the client gives {source} {seen}, the model nothing"
        event = self.model.take(toppar)
        assert (event.place, name_of(event)) == seen, f"{source}: the client gives {seen}, the model {event}"
        self.consumed[source].append(seen)


def config(bootstrap: str, group: str) -> dict[str, Any]:
    """The product's consumer, but for how long an empty answer of the broker may take."""
    return {**consumer_config({"bootstrap.servers": bootstrap}, group, "twin"), "fetch.wait.max.ms": 10}


def name_of(message: Message | Event) -> str:
    """The error that a message is, or nothing."""
    error = message.error()
    return "" if error is None else error.name()


UNANSWERED = frozenset(
    {"_TIMED_OUT", "_TIMED_OUT_QUEUE", "_DESTROY_BROKER", "_TRANSPORT", "_WAIT_CACHE", "LEADER_NOT_AVAILABLE"}
)
"""Which of these it is, where nobody can answer, is a matter of moments."""


def outcome(call: Callable[[Any], object], client: Any) -> object:
    """What a call gives: its value, or the name of its error."""
    try:
        return call(client)
    except KafkaException as failure:
        name = failure.args[0].name()
        return "unanswered" if name in UNANSWERED else name


def numbers(client: Any, *places: TopicPartition) -> list[int]:
    """What logical offsets stand for; the client takes one of each partition at a time."""
    return [client.offsets_for_times([place], timeout=SECONDS)[0].offset for place in places]


@contextmanager
def twin(broker: Broker, partitions: int = 2) -> Iterator[Twin]:
    """A twin that is ended at the end."""
    made = Twin(broker, partitions)
    try:
        yield made
    finally:
        made.close()
