"""A group that is well, on a cluster that keeps offsets already."""

from __future__ import annotations

from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.edges.checkup.cluster import Cluster
from tests.support.broker import Broker
from tests.support.deadline import until
from tests.support.doctoring import DELAYS
from tests.support.kafka import SECONDS
from tests.support.topics import GroupTopics, create_group, fresh_group
from topics.names import Kind
from topics.rights import Group


@pytest.fixture(scope="module", autouse=True)
def warm(kafka: Broker) -> None:
    """The first group of a cluster has to wait for the topic of all groups; that is not what is tested here."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "warm"})

    def answered() -> bool:
        with suppress(KafkaException):
            consumer.committed([TopicPartition("warm", 0)], timeout=1.0)
            return True
        return False

    until(answered, 2 * SECONDS, "the cluster keeps offsets")
    consumer.close()


@pytest.fixture
def topics(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=DELAYS), also=(Kind.VIEW, Kind.STATS, Kind.POLICY))


@pytest.fixture
def group(topics: GroupTopics) -> Group:
    return Group(topics.names, topics.mains, topics.delays, view=True)


@pytest.fixture
def cluster(kafka: Broker) -> Cluster:
    return Cluster({"bootstrap.servers": kafka.bootstrap})
