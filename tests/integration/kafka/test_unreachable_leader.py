"""One of three nodes that the cluster reaches and one consumer does not: everything of the other nodes goes on.

Each node is behind a proxy, which the consumer alone goes through.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.client_config import consumer_config
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.kafka.consumer.looks import UNANSWERED_FOR
from tests.integration.kafka.test_consumer import SECONDS, Keeper
from tests.sim.twin_broker import unused_name
from tests.support.deadline import until
from tests.support.kafka.broker import embedded
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import Out, create_topic, produce

pytestmark = [pytest.mark.long, pytest.mark.three]

COUNT = 36
ENDLESS = 1_000_000
CLIENT = "far"
LOST = 0
"""The node that the consumer cannot reach."""
FEW = 30
"""Requests for offsets to all nodes: one to each is a look. Partition by partition there were hundreds."""


class Cluster(NamedTuple):
    """Three nodes, and the proxy in front of each."""

    kafka: EmbeddedKafka
    proxies: list[KafkaProxy]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        proxies = [stack.enter_context(KafkaProxy()) for _ in range(3)]
        kafka = stack.enter_context(embedded(3, advertised=lambda node: proxies[node].address))
        for node, proxy in enumerate(proxies):
            proxy.target(kafka.node(node).plan.proxied_port)
        yield Cluster(kafka, proxies)


class Scene:
    """A level of many partitions with one record each that the group has done, and one that it has not."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster, self._stack = cluster, stack
        self.bootstrap = cluster.kafka.bootstrap
        self.topic, self.group = unused_name("far"), unused_name("far")
        create_topic(self.bootstrap, self.topic, COUNT, {"message.timestamp.type": "LogAppendTime"}, replication=3)
        self.append(0, 1)
        done = Progress(1, last_at_ms=int(time.time() * 1000))
        sources = [Partition(self.topic, number) for number in range(COUNT)]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition(*one, 1, encode(one, done)) for one in sources], asynchronous=False)
        consumer.close()
        self.append(1, 2)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        led = admin.list_topics(self.topic, timeout=SECONDS).topics[self.topic].partitions
        self.lost = {number for number, partition in led.items() if partition.leader == LOST}
        self.reached = set(range(COUNT)) - self.lost
        assert self.lost
        self.asked = [proxy.add(Rule(Api.LIST_OFFSETS, CLIENT, Moment.ARRIVED)) for proxy in cluster.proxies]

    def append(self, begin: int, end: int) -> None:
        """One record in each partition for each offset."""
        for _ in range(begin, end):
            produce(self.bootstrap, self.topic, [Out(b"x", partition=number) for number in range(COUNT)])

    def lose(self) -> None:
        """The consumer hears nothing more of one node that it asks about records and offsets."""
        for api in (Api.FETCH, Api.LIST_OFFSETS):
            self.cluster.proxies[LOST].add(Rule(api, CLIENT, Moment.ARRIVED, times=ENDLESS, fate=Fate.SILENCE))

    def find(self) -> None:
        """The node is reached again."""
        self.cluster.proxies[LOST].clear()

    def start(self) -> tuple[Keeper, ConsumerThread]:
        keeper = Keeper()
        assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
        servers = self.cluster.kafka.proxied_bootstrap
        config = consumer_config({"bootstrap.servers": servers}, self.group, CLIENT)
        thread = ConsumerThread(config, [self.topic], keeper, assignment, None)
        thread.looks.due_offsets.waits = lambda: {self.topic: 1_000}
        thread.start()
        self._stack.callback(self._end, thread)
        return keeper, thread

    def _end(self, thread: ConsumerThread) -> None:
        thread.stop(1.0)
        thread.join(SECONDS)
        assert thread.failure is None


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(cluster, stack)
    for proxy in cluster.proxies:
        proxy.clear()
        assert proxy.problems == []


def read(keeper: Keeper) -> set[int]:
    """The partitions of which something was handed over."""
    return {run.partition.number for run in keeper.runs if run.records}


def test_a_leader_that_is_not_reached_at_the_start_keeps_no_other_partition_waiting(scene: Scene) -> None:
    """All partitions were unknown for it, and then looked up one after the other, without a poll between."""
    scene.lose()
    keeper, _ = scene.start()
    until(lambda: read(keeper) == scene.reached, SECONDS, "what the other nodes lead is read")
    assert sum(rule.seen for rule in scene.asked) <= FEW
    scene.find()
    until(lambda: read(keeper) == set(range(COUNT)), SECONDS, "and the rest, when the node is reached")
    offsets = [(run.partition.number, record.offset) for run in keeper.runs for record in run.records]
    assert sorted(offsets) == [(number, 1) for number in range(COUNT)], "each once"


def test_where_the_other_logs_end_stays_known_and_what_is_not_known_for_long_shows(scene: Scene) -> None:
    """The lag of all partitions stood still, and a level that was created again went unnoticed, without a sign."""
    keeper, thread = scene.start()
    until(lambda: read(keeper) == set(range(COUNT)), SECONDS, "all is read")
    until(lambda: len(thread.looks.ends) == COUNT, SECONDS, "all ends are known")
    scene.lose()
    scene.append(2, 4)
    grown = {Partition(scene.topic, number): 4 for number in scene.reached}
    until(lambda: grown.items() <= thread.looks.ends.items(), SECONDS, "the ends of the others are known")
    lost = {Partition(scene.topic, number) for number in scene.lost}
    until(lambda: thread.looks.unanswered == lost, UNANSWERED_FOR + SECONDS, "the partitions are named")
    assert thread.looks.problem.startswith("Kafka does not say what these partitions hold: ")
    scene.find()
    until(lambda: set(thread.looks.ends.values()) == {4}, SECONDS, "all ends are known again")
    until(lambda: not thread.looks.unanswered and not thread.looks.problem, SECONDS, "and nothing is said any more")
