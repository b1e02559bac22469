"""A group that is well, on a cluster that keeps offsets already."""

from __future__ import annotations

from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape
from reconsume.topics.names import Kind
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS
from tests.support.sidecar.doctoring import DELAYS


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
    return create_group(fresh_group(kafka.bootstrap, delays=DELAYS), also=(Kind.VIEW, Kind.POLICY))


@pytest.fixture
def group(topics: GroupTopics) -> GroupShape:
    return GroupShape(topics.names, topics.mains, topics.delays, view=True)


@pytest.fixture
def cluster(kafka: Broker) -> Cluster:
    return Cluster({"bootstrap.servers": kafka.bootstrap})
