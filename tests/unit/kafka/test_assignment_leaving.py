"""A consumer that is closed for good: after its last partition nothing is asked of the client any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.core.lane.partition import AssignedPartition
from sidecar.core.record import Partition
from sidecar.kafka.consumer.assignment import Assignment

PLACES = [TopicPartition("orders", 0, 7)]


class Client:
    """A Kafka client that, like librdkafka's, may have ended with its last partition: it then never answers."""

    def __init__(self) -> None:
        self.given_up = False
        self.asked_in_vain = 0

    def consumer_group_metadata(self) -> str:
        self.asked_in_vain += self.given_up
        return "metadata"

    def subscribe(self, topics: Sequence[str], **_callbacks: Any) -> None:
        self.given_up = False

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return places

    def list_topics(self, topic: str, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.given_up = False

    def resume(self, places: list[TopicPartition]) -> None: ...

    def pause(self, places: list[TopicPartition]) -> None: ...

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.given_up = True


class Lane:
    """Gives up at once."""

    def assigned(self, grants: Sequence[AssignedPartition]) -> None: ...

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        done()

    def dropped(self, partitions: Sequence[Partition]) -> None: ...

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None: ...

    def truncated(self, partition: Partition, high: int) -> None: ...


def at_work() -> tuple[Assignment, Any]:
    client: Any = Client()
    assignment = Assignment(Lane(), start_at="latest", lock_timeout=1.0)
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
