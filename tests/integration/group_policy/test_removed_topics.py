"""Whose level it is, where names alone do not say: the offsets that the group has committed decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.group_policy.levels import Undrained, leftover_levels, leftovers
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup
from reconsume.topics.names import Names
from tests.integration.kafka.test_consumer import commit
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import SECONDS, create_topic, produce


class Neighbours(NamedTuple):
    """The group `b…`, whose topic `x-a` is gone, and perhaps `a-b…`, whose topic is `x`: they share a level's name."""

    names: Names
    level: str
    there: dict[str, int]
    consumer: Consumer


@pytest.fixture
def neighbours(kafka: Broker, group: str) -> Iterator[Neighbours]:
    names = Names(group, "{topic}-{group}")
    level = names.level(1_000, "x-a")
    create_topic(kafka.bootstrap, level, 2, {})
    produce(kafka.bootstrap, level, [b"waits"] * 3)
    consumer = Consumer(follower_config({"bootstrap.servers": kafka.bootstrap}, names.retry_group, "t"))
    yield Neighbours(names, level, {level: 2, names.ready: 1}, consumer)
    consumer.close()


def left(case: Neighbours) -> frozenset[str]:
    logs, found = OffsetLookup(case.consumer, Leaders()), list[Undrained]()

    def told() -> bool:
        found.append(leftover_levels(logs, case.names, ["main"], case.there, ()))
        return not found[-1].unknown

    until(told, SECONDS, "Kafka says")
    return found[-1].holding


def test_a_level_that_no_other_group_can_own_is_read_although_nothing_was_committed(neighbours: Neighbours) -> None:
    assert left(neighbours) == {neighbours.level}


def test_a_level_that_another_group_may_own_is_left_to_it(neighbours: Neighbours) -> None:
    """Given the ready topic of a group `a-b…`, then its level is not read, and nothing of it is named."""
    neighbours.there[f"a-{neighbours.names.ready}"] = 1
    assert left(neighbours) == frozenset()


def test_what_this_group_has_read_before_is_its_own_whatever_groups_there_are(
    kafka: Broker, neighbours: Neighbours
) -> None:
    """Given a committed offset of 0, as each assigned level has one, then the level is this group's."""
    neighbours.there[f"a-{neighbours.names.ready}"] = 1
    commit(kafka.bootstrap, neighbours.names.retry_group, TopicPartition(neighbours.level, 1, 0))
    assert left(neighbours) == {neighbours.level}


def test_people_are_told_of_the_same_levels(kafka: Broker, neighbours: Neighbours) -> None:
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap})
    told = leftovers(cluster, neighbours.names, ["main"])
    assert [(found.level.name, found.waiting) for found in told] == [(neighbours.level, 3)]
    create_topic(kafka.bootstrap, f"a-{neighbours.names.ready}", 1, {})
    assert leftovers(cluster, neighbours.names, ["main"]) == []
    commit(kafka.bootstrap, neighbours.names.retry_group, TopicPartition(neighbours.level, 0, 0))
    told = leftovers(cluster, neighbours.names, ["main"])
    assert [found.level.topic for found in told] == ["x-a"]
