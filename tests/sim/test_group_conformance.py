"""The models of client and coordinator against real members of a real group that come and go."""

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition

from tests.sim.group_model import Membership
from tests.sim.group_twin import GroupTwin, Member, group_twin
from tests.sim.twin_broker import Broker
from tests.support.kafka.broker import Broker as Kafka


@pytest.fixture(scope="module")
def broker(kafka: Kafka) -> Iterator[Broker]:
    made = Broker(kafka.bootstrap)
    yield made
    made.close()


@pytest.fixture
def group(broker: Broker) -> Iterator[GroupTwin]:
    with group_twin(broker, 3) as made:
        yield made


def pause_all(member: Member) -> None:
    places = [TopicPartition(*source) for source in sorted(member.owned)]
    member.both(lambda client: client.pause(places))


def resume(member: Member) -> None:
    places = [TopicPartition(*source) for source in sorted(member.owned)]
    member.both(lambda client: client.resume(places))


def test_a_pause_outlives_the_membership_of_another(group: GroupTwin) -> None:
    """What went to another member and came back is paused in the client, though nobody has paused it since."""
    first = group.join("first")
    pause_all(first)
    second = group.join("second")
    moved = set(second.owned)
    assert moved
    group.leave("second")
    assert moved < first.owned
    group.append()
    seen = len(first.seen)
    group.settle()
    assert len(first.seen) == seen, "all three are paused, those that were away too"
    resume(first)
    group.settle()
    assert {source for source, _ in first.seen[seen:]} == first.owned


def test_members_that_come_and_go_consume_what_the_model_says(group: GroupTwin) -> None:
    group.append(2)
    first = group.join("first")
    group.join("second")
    pause_all(first)
    group.append()
    group.settle()
    group.join("third")
    resume(first)
    group.leave("second")
    group.append()
    group.settle()
    group.leave("first")
    group.settle()


def test_partitions_that_are_added_are_given_to_somebody(group: GroupTwin) -> None:
    group.join("first")
    group.grow(5)
    group.append()
    group.settle()
    assert len(group.members["first"].owned) == 5


def test_an_older_generation_may_not_commit(group: GroupTwin) -> None:
    first = group.join("first")
    group.append()
    group.settle()
    old, known = first.real.consumer_group_metadata(), group.group.membership("first")
    second = group.join("second")
    assert group.commit("old generation", known, old) == "ILLEGAL_GENERATION"
    new = first.real.consumer_group_metadata()
    assert group.commit("new generation", group.group.membership("first"), new) == ""
    left, was = second.real.consumer_group_metadata(), Membership("second", group.group.generation)
    group.leave("second")
    assert group.commit("one that has left", was, left) == "UNKNOWN_MEMBER_ID"
