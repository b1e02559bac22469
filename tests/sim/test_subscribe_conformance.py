"""What the real client does to the process at a change of its subscription: the model forbids it, the product waits.

A member that was put out of its group, as one that was frozen is, has no member id while it joins again. The tests put
it out by a LeaveGroup in its name. A topic that is missing makes the client ask for metadata before it joins: that
lasts.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.sim.twin_broker import SECONDS
from tests.support.kafka.broker import Broker as Kafka
from tests.support.kafka.topic_io import create_topic

ROOT = Path(__file__).parents[2]
COMMON = """
import socket, struct, sys, time
from confluent_kafka import Consumer, TopicPartition

bootstrap, topic, group = sys.argv[1:]
deadline = time.monotonic() + 75


def put_out(metadata):
    text = lambda value: struct.pack(">h", len(value)) + value
    body = struct.pack(">hhi", 13, 0, 1) + text(b"test") + text(group.encode()) + text(metadata[11:].split(b"\\0")[1])
    with socket.create_connection(bootstrap.split(":"), 10) as broker:
        broker.sendall(struct.pack(">i", len(body)) + body)
        assert broker.recv(100)[-2:] == bytes(2)


def until(done, turn):
    while not done():
        assert time.monotonic() < deadline
        turn()
"""
BARE = """
joined, lost = [], []


def on_assign(client, places):
    client.incremental_assign(places)
    joined.append(places)


def on_lost(client, places):
    client.incremental_unassign(places)
    lost.append(places)


def subscribe(*topics):
    client.subscribe([topic, *topics], on_assign=on_assign, on_lost=on_lost)


client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "heartbeat.interval.ms": 100,
    "partition.assignment.strategy": "cooperative-sticky"})
subscribe("missing")
until(lambda: joined, lambda: client.consume(1, 0.1))
for _ in range(50):  # the client is without a member id for a millisecond or two each time
    joined.clear()
    lost.clear()
    put_out(client.consumer_group_metadata())
    again = time.monotonic() + 5  # whoever is put out amid a rebalance of its own has nothing to lose
    until(lambda: lost or time.monotonic() > again, lambda: client.consume(1, 0.001))
    if not lost:
        continue
    for _ in range(20):
        subscribe(f"missing-{time.monotonic_ns()}")
    until(lambda: joined, lambda: client.consume(1, 0.01))
client.close()
"""
"""Subscribes without a pause while the client joins again."""
PRODUCT = """
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import consumer_config
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread


class Lane:
    def received(self, runs, weight): pass
    def full(self): return False
    def assigned(self, grants): pass
    def release(self, places, done): done()
    def dropped(self, places): pass


config = consumer_config({"bootstrap.servers": bootstrap, "heartbeat.interval.ms": 100}, group, "test")
assignment = Assignment(Lane(), start_at="earliest", lock_timeout=1.0)
thread = ConsumerThread(config, [topic, "missing"], Lane(), assignment, None)


def owns():
    return assignment.membership and len(assignment.owned_partitions) == 2


thread.start()
until(owns, lambda: time.sleep(0.01))
thread._poll = 0.001  # the more turns, the more of them in which it could subscribe too early
put_out(assignment.membership.metadata)
until(lambda: assignment.rebalances["lost"], lambda: time.sleep(0.0005))
for number in range(20):
    thread.subscribe([topic, f"missing-{number}"])
    time.sleep(0.001)
until(lambda: owns() and set(assignment.topics) == {topic, "missing-19"}, lambda: time.sleep(0.01))
assert thread.failure is None
thread.stop(1.0)
thread.join(10)
assert not thread.is_alive() and thread.failure is None
"""
"""The product's consumer, whose topics change all the time while it joins again."""


def run(kafka: Kafka, topic: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own; it has as its arguments the broker, a topic and a group's name."""
    command = [sys.executable, "-c", COMMON + program, kafka.bootstrap, topic, topic]
    return subprocess.run(command, cwd=ROOT, timeout=5 * SECONDS, capture_output=True, text=True)


def test_to_subscribe_while_a_lost_membership_is_asked_for_again_ends_the_process(kafka: Kafka, topic: str) -> None:
    assert run(kafka, topic, BARE).returncode == -signal.SIGABRT


def test_topics_that_change_while_a_lost_membership_is_asked_for_again_end_no_process(kafka: Kafka, group: str) -> None:
    create_topic(kafka.bootstrap, group, 2)
    ended = run(kafka, group, PRODUCT)
    assert ended.returncode == 0, ended.stderr
