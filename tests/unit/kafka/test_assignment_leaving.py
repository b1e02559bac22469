"""A consumer that leaves: it takes part in rebalances while it waits, and then asks nothing of the client any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment

PLACES = [TopicPartition("orders", 0, 7)]
OTHERS = [TopicPartition("orders", 1, 7)]


class Client:
    """A Kafka client that, like librdkafka's, may have ended with its last partition: it then never answers."""

    def __init__(self) -> None:
        self.given_up = False
        self.asked_in_vain = 0
        self.paused: list[TopicPartition] = []
        self.callbacks: list[Callable[[], None]] = []
        """What happens in the group while messages are taken, one a time."""

    def consumer_group_metadata(self) -> str:
        self.asked_in_vain += self.given_up
        return "metadata"

    def subscribe(self, topics: Sequence[str], **_callbacks: Any) -> None:
        self.given_up = False

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return places

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, 7) for place in places]

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.given_up = False

    def resume(self, places: list[TopicPartition]) -> None: ...

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused += places

    def consume(self, most: int, timeout: float) -> list[Any]:
        if self.callbacks:
            self.callbacks.pop(0)()
        return []

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.given_up = True


class Lane:
    """Gives up at once, or, when it is `busy`, once it is told."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.given: list[Partition] = []
        self.given_up: list[Partition] = []
        self.dones: list[Callable[[], None]] = []

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.given += [grant.partition for grant in grants]

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.dones.append(done)
        if not self.busy:
            self.finish()

    def finish(self) -> None:
        self.busy = False
        for done in self.dones:
            done()

    def dropped(self, partitions: Sequence[Partition]) -> None:
        self.given_up += partitions

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None: ...

    def truncated(self, partition: Partition, high: int) -> None: ...


def at_work(lane: Lane | None = None, lock_timeout: float = 30.0) -> tuple[Assignment, Any]:
    client: Any = Client()
    assignment = Assignment(lane or Lane(), start_at="earliest", lock_timeout=lock_timeout)
    assignment.join(client, ["orders"])
    assignment.on_assign(client, PLACES)
    assert assignment.membership is not None
    return assignment, client


def test_with_the_last_partition_of_a_consumer_that_leaves_nothing_is_asked_and_nothing_can_be_committed() -> None:
    for give_up in ("on_revoke", "on_lost"):
        assignment, client = at_work()
        assignment.leave(client)
        getattr(assignment, give_up)(client, PLACES)
        assert client.asked_in_vain == 0
        assert assignment.membership is None


def test_a_rebalance_of_one_that_stays_takes_the_membership_anew() -> None:
    assignment, client = at_work()
    assignment.on_revoke(client, PLACES)
    assert assignment.membership is not None
    assert assignment.membership.epochs == {}


def test_one_that_left_and_joined_again_as_a_new_client_has_a_membership() -> None:
    assignment, client = at_work()
    assignment.leave(client)
    assignment.on_revoke(client, PLACES)
    assignment.join(client, ["orders"])
    assignment.on_assign(client, PLACES)
    assert assignment.membership is not None
    assignment.on_revoke(client, PLACES)
    assert assignment.membership is not None


def test_one_that_leaves_takes_part_in_a_rebalance_and_reads_nothing_of_what_it_is_given() -> None:
    lane = Lane(busy=True)
    assignment, client = at_work(lane)
    assert lane.given == [Partition("orders", 0)]
    seen = []

    def rebalance() -> None:
        before = assignment.membership
        assignment.on_assign(client, OTHERS)
        seen.append((before is not assignment.membership, assignment.membership and assignment.membership.epochs))

    client.callbacks = [rebalance, lane.finish]
    assignment.leave(client)
    assert seen == [(True, {Partition("orders", 0): 1})]
    assert lane.given == [Partition("orders", 0)]
    assert client.paused == [*PLACES, *OTHERS]
    assignment.on_revoke(client, [*PLACES, *OTHERS])
    assert (assignment.membership, client.asked_in_vain, lane.given_up) == (None, 0, [])


def test_what_the_group_takes_from_one_that_leaves_is_given_up_and_the_rest_can_still_be_committed() -> None:
    lane = Lane()
    assignment, client = at_work(lane)
    assignment.on_assign(client, OTHERS)
    lane.busy, kept = True, []

    def rebalance() -> None:
        lane.busy = False
        assignment.on_revoke(client, OTHERS)
        kept.append(assignment.membership and [*assignment.membership.epochs])
        lane.finish()

    client.callbacks = [rebalance]
    assignment.leave(client)
    assert kept == [[Partition("orders", 0)]]
    assert lane.given_up == []


def test_what_is_still_under_way_at_the_end_of_its_time_is_dropped_once() -> None:
    lane = Lane(busy=True)
    assignment, client = at_work(lane, lock_timeout=0.05)
    assignment.leave(client)
    assignment.on_revoke(client, PLACES)
    assert lane.given_up == [Partition("orders", 0)]
