"""Under which generation revoked partitions may be committed, however late a consumer learns of a rebalance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.membership import GroupMembership, Membership, generation_of

MINE = Partition("orders", 0)
EPOCHS = {MINE: 1}


def metadata(generation: int) -> bytes:
    """As librdkafka serializes it."""
    return b"CGMDv2:" + generation.to_bytes(4, sys.byteorder, signed=True) + b"billing\0member-1\0\1"


class Client:
    """A member of a group that is at some generation."""

    def __init__(self, generation: int) -> None:
        self.generation: int | None = generation
        self.assigned = [MINE]

    def consumer_group_metadata(self) -> bytes:
        if self.generation is None:
            raise RuntimeError("Consumer group metadata not available")
        return metadata(self.generation)

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        self.assigned = []


class Lane:
    """Says what it was told; `during` is called while its deliveries are awaited."""

    def __init__(self, during: Callable[[], None] = lambda: None, *, answered: bool = False) -> None:
        self.told: list[str] = []
        self._during, self._answered = during, answered

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.told.append("release")
        self._during()
        if self._answered:
            done()

    def dropped(self, partitions: Sequence[Partition]) -> None:
        self.told.append("dropped")


def owner(client: Client, lane: Lane, **terms: Any) -> Assignment:
    """A consumer that has learned of the rebalance in which it got its partition."""
    assignment = Assignment(cast("Any", lane), start_at="earliest", **{"lock_timeout": 60.0, **terms})
    assignment.owned_partitions[MINE] = OwnedPartition(MINE, WantedFetch(1))
    assignment.group.rebalanced(cast("Consumer", client), EPOCHS)
    return assignment


def member() -> tuple[Any, GroupMembership]:
    """A client, and its membership after the rebalance in which it got its partition."""
    client: Any = Client(7)
    group = GroupMembership(stepwise=True)
    group.rebalanced(client, EPOCHS)
    return client, group


def revoke(assignment: Assignment, client: Client) -> None:
    """It learns that its partition is revoked."""
    assignment.on_revoke(cast("Consumer", client), [TopicPartition(*MINE)])


@pytest.mark.parametrize("generation", [0, 1, 300, 2**31 - 1, -1])
def test_the_generation_is_read_from_the_clients_own_form(generation: int) -> None:
    assert generation_of(metadata(generation)) == generation


@pytest.mark.parametrize("other", [None, b"", b"CGMDv3:\1\0\0\0", "CGMDv2:abcd", object()])
def test_another_form_has_no_generation_and_fences_nothing(other: object) -> None:
    assert generation_of(other) is None


def test_revoked_partitions_are_dropped_as_soon_as_the_group_goes_on_without_waiting_for_them() -> None:
    client = Client(7)

    def group_goes_on() -> None:
        client.generation = 9

    lane = Lane(during=group_goes_on)
    assignment = owner(client, lane)
    client.generation = 8  # the rebalance that revokes
    revoke(assignment, client)
    assert lane.told == ["release", "dropped"]
    assert assignment.membership == Membership(metadata(8), {}), "and nothing is committed, until the rebalance is over"
    assignment.group.rebalanced(cast("Consumer", client), {})
    assert assignment.membership == Membership(metadata(9), {})


def test_partitions_are_released_in_order_while_the_generation_that_revokes_them_lasts() -> None:
    client, lane = Client(7), Lane(answered=True)
    assignment = owner(client, lane)
    client.generation = 8
    revoke(assignment, client)
    assert lane.told == ["release"]


def test_a_revocation_that_is_learned_a_rebalance_too_late_commits_nothing() -> None:
    client, lane = Client(7), Lane(answered=True)
    assignment = owner(client, lane)
    client.generation = 9
    revoke(assignment, client)
    assert lane.told == ["dropped"]
    assert client.assigned == []


@pytest.mark.parametrize(
    ("learned_at", "given_up_at", "assigned_at", "overtaken"),
    [
        (8, 8, 8, False),  # each revocation is followed by an assignment of the same rebalance
        (8, 8, 9, True),  # it joined again after it was given up, and before it was told of the rest
        (8, 9, 9, True),  # while it was given up
        (9, 9, 9, True),  # before it was told
    ],
)
def test_a_client_that_joins_again_within_a_revocation_is_overtaken(
    learned_at: int, given_up_at: int, assigned_at: int, overtaken: bool
) -> None:
    """It would take part in no further rebalance, and all others would wait for it for `max.poll.interval.ms`."""
    client = Client(7)

    def given_up() -> None:
        client.generation = given_up_at

    assignment = owner(client, Lane(during=given_up, answered=learned_at == given_up_at))
    client.generation = learned_at
    revoke(assignment, client)
    assert not assignment.group.overtaken, "what it still has can be given up in order after the rebalance"
    client.generation = assigned_at
    assignment.group.rebalanced(cast("Consumer", client), {})
    assert assignment.group.overtaken is overtaken
    assignment.group.rebalanced(cast("Consumer", client), {})
    assert assignment.group.overtaken is overtaken
    assignment.group.end_membership()
    assert not assignment.group.overtaken


def test_what_a_client_gives_up_because_it_subscribes_to_less_overtakes_nobody() -> None:
    """It revokes these by itself and then joins again: the assignment behind it is of the next generation."""
    client = Client(7)
    assignment = owner(client, Lane(answered=True))
    assignment.group.subscribed()
    revoke(assignment, client)
    client.generation = 8
    assignment.group.rebalanced(cast("Consumer", client), {})
    assert not assignment.group.overtaken
    revoke(assignment, client)
    client.generation = 9
    assignment.group.rebalanced(cast("Consumer", client), {})
    assert assignment.group.overtaken, "only once"


def test_by_the_brokers_own_protocol_an_epoch_may_skip_some() -> None:
    client, lane = Client(7), Lane(answered=True)
    assignment = owner(client, lane, stepwise=False)
    client.generation = 12
    revoke(assignment, client)
    assert lane.told == ["release"]


def test_between_rebalances_no_newer_membership_is_taken_than_a_revocation_that_is_not_learned_yet_allows() -> None:
    """Partitions that were begun anew meanwhile have their new epochs in it all the same."""
    client, group = member()
    for generation, known in ((8, 8), (9, 8), (10, 8)):
        client.generation = generation
        group.take_metadata(client, {MINE: generation})
        assert group.current == Membership(metadata(known), {MINE: generation})
    assert group.is_overtaken(client), "and taking it has not served the rebalance"


def test_each_rebalance_counts_once_however_far_the_group_is_ahead_of_its_callback() -> None:
    client, group = member()
    for generation, overtaken in ((9, False), (11, True), (10, False)):
        client.generation = generation
        group.rebalanced(client, EPOCHS)
        assert group.is_overtaken(client) is overtaken


def test_a_generation_that_lasts_has_been_served() -> None:
    """A rebalance that was cut off before its end has no callback."""
    client, group = member()
    client.generation = 12
    for overtaken in (True, False):
        group.note_generation(client)
        assert group.is_overtaken(client) is overtaken
    group.take_metadata(client, EPOCHS)
    assert group.current == Membership(metadata(12), EPOCHS)


def test_a_new_member_begins_to_count_anew() -> None:
    client, lane = Client(7), Lane()
    assignment = owner(client, lane)
    client.generation = 40
    assignment.on_lost(cast("Consumer", client), [TopicPartition(*MINE)])
    assert lane.told == ["dropped"]
    assert assignment.membership == Membership(metadata(40), {})


def test_a_client_that_has_left_has_no_membership_and_has_not_moved_on() -> None:
    client, group = member()
    client.generation = None
    assert not group.has_moved_on(client)
    assert not group.is_overtaken(client)
    group.take_metadata(client, EPOCHS)
    assert group.current is None
