"""A group side by side with its model: real members on a real broker, and what the model says of each.

Which member gets which partition is the coordinator's choice, so the model is told; everything else must agree: what is
revoked was owned, what is assigned was free, who may commit, and what each member consumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from reconsume.sidecar.core.record import Partition
from tests.sim.client_model import ClientModel
from tests.sim.group_model import GroupModel, Membership
from tests.sim.kafka_model import KafkaModel
from tests.sim.twin import config, name_of
from tests.sim.twin_broker import SECONDS, Broker, unused_name
from tests.support.kafka.topic_io import create_topic


class Member:
    """A real consumer and its model; both begin each partition at its beginning."""

    def __init__(self, world: GroupTwin, name: str) -> None:
        self.world, self.name = world, name
        self.model = ClientModel(world.kafka, world.name, Random(0))
        quick = {"heartbeat.interval.ms": 100, "topic.metadata.refresh.interval.ms": 500}
        self.real = Consumer({**config(world.broker.bootstrap, world.name), **quick})
        self.owned: set[Partition] = set()
        self.seen: list[tuple[Partition, int | None]] = []
        """What it consumed: records only."""
        self.real.subscribe([world.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        begin = [TopicPartition(place.topic, place.partition, 0) for place in places]
        for source in sources(places):
            self.world.group.give(self.name, source)
        self.owned |= set(sources(places))
        for client in (consumer, self.model):
            client.incremental_assign(begin)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        assert set(sources(places)) <= self.owned, "only what is owned is revoked"
        self.world.group.free(sources(places))
        self.owned -= set(sources(places))
        for client in (consumer, self.model):
            client.incremental_unassign(places)

    def poll(self) -> None:
        """Consume what there is; the model must have it."""
        messages = self.real.consume(100, 0.02)
        self.model.fetch()
        for message in messages:
            if name_of(message):
                continue  # ends are the other test's business
            source = Partition(message.topic() or "", message.partition() or 0)
            queue = self.model.toppars[source].queue
            while queue and queue[0].failure is not None:
                queue.popleft()
            assert queue, f"{self.name} is given {message.offset()} of {source}, the model nothing"
            assert self.model.take(self.model.toppars[source]).place == message.offset()
            self.seen.append((source, message.offset()))

    @property
    def behind(self) -> bool:
        """Whether the model has records that the client has not given yet."""
        self.model.fetch()
        return any(event.stored is not None for toppar in self.model.toppars.values() for event in toppar.queue)

    def both(self, call: Callable[[Consumer | ClientModel], object]) -> None:
        """The same call of both."""
        call(self.real)
        call(self.model)


class GroupTwin:
    """One topic and one group whose members come and go."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        self.broker = broker
        self.topic, self.name = unused_name("twin"), unused_name("twin")
        create_topic(broker.bootstrap, self.topic, partitions)
        self.kafka = KafkaModel(lambda: 0, partitions)
        self.kafka.create(self.topic)
        self.group = GroupModel()
        self.members: dict[str, Member] = {}

    def close(self) -> None:
        """End whoever is left."""
        for name in list(self.members):
            self.leave(name)

    def join(self, name: str) -> Member:
        """Another member, and the time that the group needs for it."""
        self.group.join(name, frozenset({self.topic}))
        self.members[name] = Member(self, name)
        self.settle()
        return self.members[name]

    def leave(self, name: str) -> None:
        """A member leaves in order: everything of it is revoked."""
        member = self.members.pop(name)
        member.real.close()
        assert not member.owned, "whoever leaves is asked to give up everything"
        self.group.leave(name)
        self.settle()

    def append(self, count: int = 1) -> None:
        """Records in each partition."""
        for source in self.kafka.places(self.topic):
            self.broker.append(source, count)
            for _ in range(count):
                self.kafka.send(source, None, b"v", [])

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic].result(SECONDS)
        self.kafka.create(self.topic, partitions)
        self.settle()

    def settle(self) -> None:
        """Let everybody poll until each partition has its owner and everything that may be consumed is."""
        deadline = time.monotonic() + SECONDS
        wanted = set(self.kafka.places(self.topic)) if self.members else set()
        while not wanted <= self.group.owners.keys() or any(not m.owned or m.behind for m in self.members.values()):
            assert time.monotonic() < deadline, f"owned are {self.group.owners}"
            for member in self.members.values():
                member.poll()

    def commit(self, name: str, membership: Membership, metadata: object) -> str:
        """What the broker says to a commit under a membership; the model must say the same."""
        said, place = "", TopicPartition(self.topic, 0, 1)
        try:
            self.broker.transact(Partition(self.topic, 0), 0, True, [place], metadata)
        except KafkaException as failure:
            said = failure.args[0].name()
        assert said == self.group.refusal(membership), name
        return said


def sources(places: list[TopicPartition]) -> list[Partition]:
    """As we name them."""
    return [Partition(place.topic, place.partition) for place in places]


@contextmanager
def group_twin(broker: Broker, partitions: int) -> Iterator[GroupTwin]:
    """A group that is ended at the end."""
    made = GroupTwin(broker, partitions)
    try:
        yield made
    finally:
        made.close()
