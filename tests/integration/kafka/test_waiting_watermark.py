"""A record that lies in the log of its leader, above the high watermark: it comes later, and is not gone.

After an election the new leader's watermark may be behind what was committed, until the other replicas have asked it
(KIP-207). Here a replica stands still instead, which holds the watermark back as long as the test wants.
"""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.queues.queue_clients import RecentRecords, RecordReads
from reconsume.topics.retry_headers import MOST_HEADERS
from tests.sim.twin_broker import unused_name
from tests.support.kafka.topic_io import SECONDS, Out, produce

pytestmark = [pytest.mark.long, pytest.mark.three]

COMMITTED = 5
"""Records below the watermark; the next one lies above it."""
LOOKS_S = 4.0
"""Several times as long as the broker waits until it says that there is nothing."""
LEADER, STILL = 0, 1
MANY = [("a", b"")] * (MOST_HEADERS + 1)


@pytest.fixture
def above(three_nodes: EmbeddedKafka) -> Partition:
    """A partition whose last record is in its leader's log alone; a record with too many headers."""
    topic = unused_name("above")
    news = NewTopic(topic, 1, replica_assignment=[[LEADER, STILL]], config={"min.insync.replicas": "1"})
    admin = AdminClient({"bootstrap.servers": three_nodes.bootstrap})
    admin.create_topics([news])[topic].result(SECONDS)
    produce(three_nodes.bootstrap, topic, [Out(b"v", partition=0)] * COMMITTED)
    three_nodes.node(STILL).pause()
    producer = Producer({"bootstrap.servers": three_nodes.bootstrap, "acks": 1})
    producer.produce(topic, b"last", partition=0, headers=MANY)
    assert producer.flush(SECONDS) == 0
    return Partition(topic, 0)


def test_a_record_of_a_queue_is_waited_for(three_nodes: EmbeddedKafka, above: Partition) -> None:
    """Given a due record above the watermark, then it is not lost, and comes once the watermark has passed it."""
    arrived, gone = list[int | None](), list[int]()
    reads = RecordReads(
        RecentRecords(0),
        lambda _queue, message: arrived.append(message.offset()),
        lambda _queue, _message: None,
        lambda _queue, offset: gone.append(offset),
    )
    config = follower_config({"bootstrap.servers": three_nodes.bootstrap}, "g", "test")
    own = {"auto.offset.reset": "error", "isolation.level": "read_uncommitted"}
    with closing(Consumer({**config, **own})) as client:
        reads.want(above, COMMITTED)
        begun = time.monotonic()
        while not arrived and time.monotonic() < begun + SECONDS:
            reads.turn(client, 0.05)
            if time.monotonic() > begun + LOOKS_S and three_nodes.node(STILL).paused:
                three_nodes.node(STILL).wake()
    assert (arrived, gone) == ([COMMITTED], [])
