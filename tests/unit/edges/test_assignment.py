"""What the consumer's callbacks do when the client is through with the group before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from confluent_kafka import Consumer, TopicPartition

from sidecar.core.assigned import Grant
from sidecar.core.record import Partition
from sidecar.edges.assignment import Assignment


class Keeper:
    """Has nothing under way."""

    def __init__(self) -> None:
        self.given_up: list[Partition] = []

    def assigned(self, grants: Sequence[Grant]) -> None: ...

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.given_up += partitions
        done()

    def dropped(self, partitions: Sequence[Partition]) -> None: ...

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None: ...

    def truncated(self, partition: Partition, high: int) -> None: ...


class Leaving:
    """A client that is being closed, as 2.16 behaves: the group is left as soon as nothing is assigned."""

    def __init__(self) -> None:
        self.assigned: set[tuple[str, int]] = {("orders", 0)}

    def consumer_group_metadata(self) -> Any:
        if not self.assigned:
            raise RuntimeError("Consumer group metadata not available")
        return object()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.assigned -= {(place.topic, place.partition) for place in partitions}


def test_a_client_that_has_left_the_group_before_it_is_asked_ends_the_membership_and_not_the_thread() -> None:
    """Raised in a callback, the client's error comes out of `close` and would end the process as a fault."""
    keeper, client = Keeper(), Leaving()
    assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
    assignment.on_revoke(cast("Consumer", client), [TopicPartition("orders", 0)])
    assert keeper.given_up == [Partition("orders", 0)]
    assert assignment.membership is None, "and nothing more can be committed"
