"""A broker that leads after it had to catch up does not name every aborted transaction. Three nodes.

Readers of committed records then get aborted ones from it, if they fetch little at a time (`client_config.WHOLE`).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import Config, consumer_config
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, Out
from tests.support.service.behaviours import OK, by_name
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

pytestmark = pytest.mark.long

LATE = 2
"""The node that is down while the records are written, and leads when they are read."""
ABORTED, TOGETHER, COMMITTED = 30, 16, 22


class Scene:
    """A group whose main topic and first level have one partition each, with replicas on two nodes."""

    def __init__(self, cluster: EmbeddedKafka) -> None:
        self.cluster, self.group = cluster, fresh_group(cluster.bootstrap)
        self.level = next(iter(self.group.levels))
        placed = [self.group.main, self.level]
        create_group(self.group, 1, replication=3, leave_out=placed)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        config = {"min.insync.replicas": "1", "message.timestamp.type": "LogAppendTime"}
        news = [NewTopic(name, 1, replica_assignment=[[LATE, 0]], config=config) for name in placed]
        for made in self.admin.create_topics(news).values():
            made.result(SECONDS)

    def write(self, topic: str) -> None:
        """Two producers in turn, and one of them aborts nearly all of its transactions; while a replica is down."""
        until(lambda: self._leader(topic) != LATE, SECONDS, "another node leads")
        one, other = (self._producer(f"{topic}-{number}") for number in range(2))
        self._transaction(other, topic, 3, aborted=False)
        for _ in range(ABORTED):
            self._transaction(one, topic, TOGETHER, aborted=True)
        self._transaction(one, topic, TOGETHER, aborted=False)
        self._transaction(other, topic, 3, aborted=False)

    def lead(self, topic: str) -> None:
        """The node that was down has caught up, and leads."""
        until(lambda: LATE in self._partition(topic).isrs, SECONDS, "it has caught up")
        self.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(SECONDS)
        until(lambda: self._leader(topic) == LATE, SECONDS, "it leads")

    def _producer(self, name: str) -> Producer:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "transactional.id": name, "log_level": 2})
        producer.init_transactions(SECONDS)
        return producer

    def _transaction(self, producer: Producer, topic: str, records: int, *, aborted: bool) -> None:
        producer.begin_transaction()
        for number in range(records):
            out = self._record(topic, b"aborted" if aborted else b"good", number)
            producer.produce(topic, out.value, headers=list(out.headers), partition=0)
        producer.flush(SECONDS)
        (producer.abort_transaction if aborted else producer.commit_transaction)(SECONDS)

    def _record(self, topic: str, name: bytes, number: int) -> Out:
        life = RetryState(f"{self.group.main}:0:{9_000 + number}", self.group.main, 1, 0, 7, 5, 6, "http-500")
        ours = render_retry_headers(life, self.group.group, topic) if topic == self.level else []
        return Out(name + b":%d " % number + b"x" * 400, headers=tuple(ours))

    def _partition(self, topic: str):  # type: ignore[no-untyped-def]  # the client's types do not name it
        return self.admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions[0]

    def _leader(self, topic: str) -> int:
        return int(self._partition(topic).leader)


@pytest.fixture
def scene(three_nodes: EmbeddedKafka) -> Scene:
    found = Scene(three_nodes)
    three_nodes.node(LATE).stop()
    for topic in (found.group.main, found.level):
        found.write(topic)
    three_nodes.heal()
    for topic in (found.group.main, found.level):
        found.lead(topic)
    return found


def aborted_read(config: Config, topic: str) -> tuple[int, int]:
    """How many records a consumer gets of the topic's partition, and how many of them are aborted."""
    consumer, values = Consumer(config), list[bytes]()
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while (message := consumer.poll(SECONDS)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            values.append(message.value() or b"")
    finally:
        consumer.close()
    return len(values), sum(value.startswith(b"aborted") for value in values)


def scanned(kafka: dict[str, str], group: str, topic: str) -> tuple[int, int]:
    """The same by a scan that fetches little until the first gap."""
    spans = Cluster(kafka).spans([(topic, 0)])
    with ScanClient(kafka, group, "scan", Fetches.UNTIL_GAP) as client:
        values = [message.value() or b"" for message in client.scan(spans, Bounds(SECONDS))]
    return len(values), sum(value.startswith(b"aborted") for value in values)


def test_no_aborted_record_is_read_from_a_leader_that_had_to_catch_up(scene: Scene, tmp_path: Path) -> None:
    kafka, group = {"bootstrap.servers": scene.cluster.bootstrap}, scene.group.group
    seen = aborted_read(consumer_config(kafka, group, "small"), scene.group.main)
    assert seen[1] > 0, "with small fetches it must happen, or this test shows nothing"
    assert aborted_read(consumer_config(kafka, group, "lane", own=True), scene.level) == (COMMITTED, 0)
    assert scanned(kafka, group, scene.level) == (COMMITTED, 0)

    with ExitStack() as stack:
        service = stack.enter_context(Service(tmp_path / "ledger.jsonl", by_name({"aborted": (OK,)})))
        sidecar = SidecarProcess(scene.group, service.url, tmp_path)
        stack.enter_context(sidecar)
        sidecar.until(lambda: len(service.ledger.deliveries()) >= 2 * COMMITTED, 60, "all are delivered")
        sidecar.until(lambda: sidecar.metric("reconsume_lag") == 0, 60, "nothing is left")
        values = [delivery.value for delivery in service.ledger.deliveries()]
        assert not [value for value in values if value.startswith(b"aborted")]
        assert len(values) == 2 * COMMITTED
        assert sidecar.stop().code == 0
