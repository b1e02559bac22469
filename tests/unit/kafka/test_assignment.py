"""What the consumer's callbacks do when the client is through with the group before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition, WantedFetch
from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import LogIds


class Keeper:
    """Has nothing under way."""

    def __init__(self) -> None:
        self.given_up: list[Partition] = []
        self.cuts: list[tuple[int, int]] = []
        self.grants: list[AssignedPartition] = []
        self.truncations: list[int] = []

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.grants += grants

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.given_up += partitions
        done()

    def dropped(self, partitions: Sequence[Partition]) -> None: ...

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self.cuts.append((wanted, low))

    def truncated(self, partition: Partition, high: int) -> None:
        self.truncations.append(high)


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


class Cut:
    """A client whose partition begins at offset 5 and ends at 10."""

    def __init__(self) -> None:
        self.fetched_from: list[int] = []
        self.paused: list[int] = []

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        edges = {OFFSET_BEGINNING: 5, OFFSET_END: 10}  # else a search by time: all of it is young
        return [TopicPartition(place.topic, place.partition, edges.get(place.offset, 5)) for place in places]

    def consumer_group_metadata(self) -> Any:
        return object()

    def seek(self, place: TopicPartition) -> None: ...

    def incremental_unassign(self, places: list[TopicPartition]) -> None: ...

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.fetched_from += [place.offset for place in places]

    def resume(self, places: list[TopicPartition]) -> None: ...

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused += [place.partition for place in places]


def test_an_error_that_is_older_than_a_seek_skips_nothing_of_what_was_sought() -> None:
    """Given a partition that goes on at 3, where its log was cut, while an error about offset 7 is still queued."""
    keeper, client = Keeper(), cast("Consumer", Cut())
    assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
    owned = OwnedPartition(Partition("orders", 0), WantedFetch(1))
    assignment.owned_partitions[owned.partition] = owned
    assignment.seek(client, owned, 3)
    assignment.out_of_range(client, {owned.partition: 7})
    assert keeper.cuts == [(3, 5)]
    assert cast("Any", client).fetched_from == [5]


def test_an_offset_that_a_log_made_anew_has_by_now_is_not_where_it_goes_on() -> None:
    """Given an error about offset 7 from when the new log was empty, when it has grown to 10 before it is looked at."""
    for last_at_ms, begins in ((1_000, 5), (None, 7)):
        client = Cut()
        assignment = Assignment(Keeper(), start_at="earliest", lock_timeout=1.0)
        owned = OwnedPartition(Partition("orders", 0), WantedFetch(1), last_at_ms=last_at_ms)
        assignment.owned_partitions[owned.partition] = owned
        assignment.out_of_range(cast("Consumer", client), {owned.partition: 7})
        assert client.fetched_from == [begins]


def test_a_log_of_another_topic_id_is_read_from_its_beginning_and_nothing_of_the_former_one_is_kept() -> None:
    """Given an offset of the former log that the new one, which ends at 10, does not have yet, or has by now."""
    former, present = LogId("c", "former"), LogId("c", "present")
    for wanted in (7, 30):
        client, keeper = Cut(), Keeper()
        log_ids: LogIds = lambda _topics: {"orders": present}  # noqa: E731
        assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0, log_ids=log_ids)
        owned = OwnedPartition(Partition("orders", 0), WantedFetch(1), former)
        assignment.owned_partitions[owned.partition] = owned
        assignment.out_of_range(cast("Consumer", client), {owned.partition: wanted})
        assert (client.fetched_from, keeper.truncations, keeper.cuts) == ([5], [0], [])
        assert [(grant.progress.next, grant.progress.log) for grant in keeper.grants] == [(5, present)]


def test_a_partition_that_begins_anew_while_the_lane_is_full_is_not_fetched() -> None:
    for full in (True, False):
        client = Cut()
        assignment = Assignment(Keeper(), start_at="earliest", lock_timeout=1.0)
        owned = OwnedPartition(Partition("orders", 0), WantedFetch(1))
        assignment.owned_partitions[owned.partition] = owned
        assignment.client.choke(full)
        assignment.out_of_range(cast("Consumer", client), {owned.partition: 3})
        assignment.reconcile(cast("Consumer", client))
        assert (client.fetched_from, client.paused) == ([5], [0] if full else [])


def test_a_client_that_has_left_the_group_before_it_is_asked_ends_the_membership_and_not_the_thread() -> None:
    """Raised in a callback, the client's error comes out of `close` and would end the process as a fault."""
    keeper, client = Keeper(), Leaving()
    assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
    assignment.on_revoke(cast("Consumer", client), [TopicPartition("orders", 0)])
    assert keeper.given_up == [Partition("orders", 0)]
    assert assignment.membership is None, "and nothing more can be committed"
