"""Retriable Kafka Client: a pool of processes delivers, and a failure waits in a retry topic."""

import sys

import requests
from retriable_kafka_client import ConsumerConfig, ConsumeTopicConfig, consume_topics

BOOTSTRAP, TOPIC, GROUP, URL, DELAY, RETRY_TOPIC, WORKERS = sys.argv[1:]
session = requests.Session()


def deliver(record):
    """Deliver one record, which the library has parsed; runs in a process of the pool."""
    session.post(URL, json=record).raise_for_status()


def consume():
    """Deliver records until the process is ended."""
    topic = ConsumeTopicConfig(base_topic=TOPIC, retry_topic=RETRY_TOPIC, fallback_delay=float(DELAY))
    config = ConsumerConfig(
        kafka_hosts=[BOOTSTRAP],
        username="",
        password="",
        additional_settings={"security.protocol": "plaintext"},
        group_id=GROUP,
        target=deliver,
        topics=[topic],
    )
    consume_topics([config], max_workers=int(WORKERS))


if __name__ == "__main__":
    consume()
