"""What the real client does to the process when a topic is listed in a callback: the model forbids it."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.sim.twin_broker import SECONDS
from tests.support.kafka.broker import Broker as Kafka

PROGRAM = """
import sys
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

bootstrap, topic, call = sys.argv[1:]
asked = [TopicPartition(topic, 0, OFFSET_END)]
calls = {
    "list_topics": lambda client: client.list_topics(topic, timeout=10),
    "offsets_for_times": lambda client: client.offsets_for_times(asked, timeout=10),
    "committed": lambda client: client.committed(asked, timeout=10),
    "consumer_group_metadata": lambda client: client.consumer_group_metadata(),
}
statistics, assigned = [], []
client = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "statistics.interval.ms": 1,
    "stats_cb": statistics.append})


def on_assign(client, places):
    calls[call](client)
    statistics.clear()
    assigned.append(places)


client.subscribe([topic], on_assign=on_assign)
while not (assigned and statistics):
    client.consume(1, 1)
client.close()
"""
"""Ends well after a callback has followed the one that makes the call."""


def ends(kafka: Kafka, topic: str, call: str) -> int:
    """How the process ends that makes this call in its rebalance callback."""
    command = [sys.executable, "-c", PROGRAM, kafka.bootstrap, topic, call]
    return subprocess.run(command, timeout=4 * SECONDS, capture_output=True).returncode


def test_to_list_a_topic_in_a_callback_ends_the_process(kafka: Kafka, topic: str) -> None:
    assert ends(kafka, topic, "list_topics") == -signal.SIGABRT


def test_the_requests_that_the_callbacks_make_do_not(kafka: Kafka, topic: str) -> None:
    for call in ("offsets_for_times", "committed", "consumer_group_metadata"):
        assert ends(kafka, topic, call) == 0, call
