"""Ours and every peer, each configured as its documentation says for at least once, with the same delay of a retry."""

from __future__ import annotations

import sys

from confluent_kafka.cimpl import NewTopic

from benchmarks import cluster
from benchmarks.peers import go_peers, java_peers, python_peers
from benchmarks.peers.job import Command, Job, Peer, topic
from benchmarks.sidecar import CODE

PORT = 19_994
POOL = 4
"""Processes that deliver for the client with a pool: twice the cores of a small machine, as they mostly wait."""
CLIENT = "confluent-kafka==2.16.1"


def our_settings(job: Job) -> list[str]:
    """The sidecar's settings for a job."""
    return [
        f"group={job.group}",
        f"topics=[{job.topic}]",
        f"kafka={{bootstrap.servers: '{job.bootstrap}'}}",
        f"deliver.url={job.url}",
        "deliver.outage_failures=null",  # with all failing it would slow down, which no peer does
        f"retry.ladder=[{job.delay}s]",
        f"retry.levels=[{job.delay}s]",
        f"api.listen=127.0.0.1:{PORT}",
        "api.probe_listen=null",
        "log.level=warning",
    ]


def our_command() -> Command:
    """How the sidecar is started: there is nothing to fetch."""
    return lambda job: [sys.executable, "-c", CODE, *our_settings(job)]


def our_topics(job: Job) -> list[NewTopic]:
    """The topics of the sidecar's group."""
    return cluster.group_topics(job.topic, cluster.settings_of(our_settings(job)))


def plain(job: Job) -> list[str]:
    """What most programs are given."""
    return [job.bootstrap, job.topic, job.group, job.url, str(job.delay)]


def faststream(job: Job) -> list[str]:
    """FastStream takes no delay; it has one worker for each partition."""
    return [*plain(job)[:-1], str(cluster.PARTITIONS)]


def retry_topic(job: Job) -> str:
    """The one retry topic of a peer whose topic is made by hand; SmallRye reads the delay from its name."""
    return f"{job.group}-retry_{job.delay_ms}"


def spring(job: Job) -> dict[str, object]:
    """System properties that `SpringPeer.java` reads."""
    return {
        "bootstrap": job.bootstrap,
        "topic": job.topic,
        "group": job.group,
        "url": job.url,
        "delay.ms": job.delay_ms,
        "partitions": cluster.PARTITIONS,
    }


def smallrye(job: Job) -> dict[str, object]:
    """The configuration of SmallRye's channel, as system properties."""
    bytes_of = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    channel: dict[str, object] = {
        "connector": "smallrye-kafka",
        "bootstrap.servers": job.bootstrap,
        "topic": job.topic,
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "key.deserializer": bytes_of,
        "value.deserializer": bytes_of,
        "failure-strategy": "delayed-retry-topic",
        "delayed-retry-topic.topics": retry_topic(job),
        "delayed-retry-topic.max-retries": 4,
        "dead-letter-queue.topic": f"{job.group}-dlq",
    }
    return {"url": job.url} | {f"mp.messaging.incoming.records.{key}": value for key, value in channel.items()}


LIBRDKAFKA = "https://github.com/confluentinc/librdkafka/blob/master/INTRODUCTION.md#at-least-once-processing"
PEERS = (
    Peer("Reconsume", "a level topic", "docs/configuration.md", our_command, our_topics),
    Peer(
        "loop, requests",
        "in place",
        LIBRDKAFKA,
        python_peers.program("bare_loop.py", [CLIENT, "requests==2.34.2"], lambda job: ["requests", *plain(job)]),
    ),
    Peer(
        "loop, httpx",
        "in place",
        LIBRDKAFKA,
        python_peers.program("bare_loop.py", [CLIENT, "httpx==0.28.1"], lambda job: ["httpx", *plain(job)]),
    ),
    Peer(
        "FastStream 0.7.8",
        "in place, at once",
        "https://faststream.ag2.ai/latest/kafka/ack/",
        python_peers.program("faststream_peer.py", ["faststream[kafka]==0.7.8", "httpx==0.28.1"], faststream),
    ),
    Peer(
        "Quix Streams 3.28.1",
        "in place",
        "https://quix.io/docs/quix-streams/advanced/checkpointing.html",
        python_peers.program("quix_peer.py", ["quixstreams==3.28.1", "requests==2.34.2"], plain),
    ),
    Peer(
        "Retriable Kafka Client 0.7.0",
        "a retry topic",
        "https://pypi.org/project/retriable-kafka-client/0.7.0/",
        python_peers.program(
            "retriable_peer.py",
            ["retriable-kafka-client==0.7.0", "requests==2.34.2"],
            lambda job: [*plain(job), retry_topic(job), str(POOL)],
            "python3.13",  # this release says 3.9, but cannot be imported by a Python older than 3.13
        ),
        lambda job: [topic(retry_topic(job))],
    ),
    Peer(
        "Spring Kafka 4.1.2",
        "a retry topic",
        "https://docs.spring.io/spring-kafka/reference/retrytopic.html",
        java_peers.program("SpringPeer", "spring.lock", spring),
    ),
    Peer(
        "SmallRye 4.36.0",
        "a retry topic",
        "https://smallrye.io/smallrye-reactive-messaging/latest/kafka/receiving-kafka-records/#delayed-retry-topic",
        java_peers.program("SmallRyePeer", "smallrye.lock", smallrye),
        lambda job: [topic(retry_topic(job)), topic(f"{job.group}-dlq")],
    ),
    Peer(
        "Dapr 1.14.0",
        "in place",
        "https://docs.dapr.io/operations/resiliency/policies/",
        go_peers.built("dapr", go_peers.dapr_files, go_peers.dapr_words),
        lambda job: [topic(f"{job.group}-dlq")],
    ),
    Peer(
        "Redpanda Connect",
        "in place",
        "https://docs.redpanda.com/redpanda-connect/components/outputs/fallback/",
        go_peers.installed("redpanda-connect", go_peers.connect_files, go_peers.connect_words),
        lambda job: [topic(f"{job.group}-dlq")],
    ),
)
YARDSTICK = "loop, requests"
