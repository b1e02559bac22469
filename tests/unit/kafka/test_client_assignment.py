"""The turns in which the client requests committed offsets, with a client that only notes what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from confluent_kafka import OFFSET_STORED, Consumer, TopicPartition

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import (
    LONGEST_TURN,
    LOST_AFTER,
    REST,
    SHORTEST_TURN,
    ClientAssignment,
    Key,
    OwnedPartition,
)
from reconsume.sidecar.kafka.consumer.start_offsets import Start

FIRST, SECOND, THIRD = (Partition("orders", number) for number in range(3))


class Told:
    """What the client was told, as (call, offsets by partition); and what it has."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[int, int]]] = []
        self.has: set[int] = set()

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        numbers = {place.partition for place in places}
        assert not numbers & self.has, "the client refuses what it has"
        self.has |= numbers
        self.calls.append(("assign", {place.partition: place.offset for place in places}))

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        numbers = {place.partition for place in places}
        assert numbers <= self.has, "the client refuses what it does not have"
        self.has -= numbers
        self.calls.append(("unassign", dict.fromkeys(numbers, 0)))


def known(source: Partition, offset: int = 7) -> Start:
    return Start(source, offset, Progress(offset))


def unknown(source: Partition) -> Start:
    return Start(source, OFFSET_STORED, None)


def given(*starts: Start) -> tuple[ClientAssignment, Consumer, Told]:
    """A client that was given these by its group."""
    assignment, told = ClientAssignment(), Told()
    client = cast("Consumer", told)
    assignment.give(client, starts)
    return assignment, client, told


def test_what_is_known_is_fetched_at_once_and_of_the_others_one_after_the_other() -> None:
    assignment, client, told = given(known(FIRST), unknown(SECOND), unknown(THIRD))
    assert told.calls == [("assign", {0: 7})]
    assert assignment.next_turn(client, 0.0) == SECOND
    assert told.calls[1:] == [("assign", {1: OFFSET_STORED})]
    assert assignment.next_turn(client, SHORTEST_TURN / 2) is None
    assert assignment.next_turn(client, SHORTEST_TURN) == THIRD
    assert told.has == {0, 2}


def test_the_group_may_give_nothing_but_partitions_that_wait() -> None:
    """The callback has to answer with a call all the same: else the client takes all of them by itself."""
    _, _, told = given(unknown(FIRST))
    assert told.calls == [("assign", {})]


def test_the_next_turn_begins_when_the_start_is_known() -> None:
    assignment, client, _ = given(unknown(FIRST), unknown(SECOND))
    assert assignment.next_turn(client, 0.0) == FIRST
    assignment.started(FIRST)
    assert assignment.next_turn(client, 0.0) == SECOND


def test_a_partition_rests_between_two_turns_and_the_last_one_keeps_its_turn() -> None:
    """An answer to the former request may be still to come, and would be taken for one to the next."""
    assignment, client, told = given(unknown(FIRST), unknown(SECOND))
    assert assignment.next_turn(client, 0.0) == FIRST
    assert assignment.next_turn(client, SHORTEST_TURN) == SECOND
    assert assignment.next_turn(client, SHORTEST_TURN + REST / 2) is None
    assert told.has == {1}
    assert assignment.next_turn(client, SHORTEST_TURN + REST) == FIRST
    assert told.has == {0}


def test_a_partition_that_waits_alone_is_asked_for_anew_in_case_the_answer_was_lost() -> None:
    """The client forgot an answer that was lost with the coordinator: the partition was never read."""
    assignment, client, told = given(unknown(FIRST))
    assert assignment.next_turn(client, 0.0) == FIRST
    for now in (SHORTEST_TURN, LOST_AFTER):
        assert assignment.next_turn(client, now) is None
        assert told.has == {0}, "the client repeats by itself what Kafka puts off"
    ended = SHORTEST_TURN + LOST_AFTER
    assert assignment.next_turn(client, ended) is None
    assert told.has == set()
    assert assignment.next_turn(client, ended + REST / 2) is None
    assert assignment.next_turn(client, ended + REST) == FIRST
    assignment.started(FIRST)
    assert assignment.next_turn(client, ended + 10 * LOST_AFTER) is None
    assert told.has == {0}, "what is read keeps being read"


def test_turns_become_longer_while_all_are_in_vain() -> None:
    assignment, client, _ = given(unknown(FIRST), unknown(SECOND), unknown(THIRD))
    now, lasted = 0.0, []
    for _ in range(20):
        begun = now
        while assignment.next_turn(client, now) is None:
            now += SHORTEST_TURN / 4
        lasted.append(now - begun)
    assert lasted[-1] == LONGEST_TURN
    current = next(source for source in (FIRST, SECOND, THIRD) if source not in assignment.waiting)
    assignment.started(current)
    assert assignment.next_turn(client, now + REST) is not None
    assert assignment.next_turn(client, now + REST + SHORTEST_TURN) is not None, "short turns again"


def test_a_report_is_believed_unless_the_assignment_has_changed_in_its_turn() -> None:
    assignment, client, _ = given(unknown(FIRST), unknown(SECOND))
    assignment.next_turn(client, 0.0)
    assert assignment.has_no_offset(FIRST)
    assert not assignment.has_no_offset(SECOND), "it waits: the report is an old one"
    assignment.give(client, [known(THIRD)])
    assert not assignment.has_no_offset(FIRST)
    assert assignment.has_no_offset(THIRD), "its offset was not requested of the group"


def test_what_is_given_anew_is_told_to_the_client_only_if_it_has_it() -> None:
    """A call outside the callbacks may be taken for the answer to a rebalance: there is none without a partition."""
    assignment, client, told = given(known(FIRST), unknown(SECOND))
    del told.calls[:]
    assignment.give_anew(client, [unknown(SECOND)])
    assert told.calls == []
    assignment.give_anew(client, [known(SECOND, 3)])
    assert told.calls == [("assign", {1: 3})]
    assignment.give_anew(client, [unknown(FIRST)])
    assert told.calls[1:] == [("unassign", {0: 0})]
    assert list(assignment.waiting) == [FIRST]


def test_partitions_that_the_group_takes_back_are_not_requested_any_more() -> None:
    assignment, client, told = given(known(FIRST), unknown(SECOND), unknown(THIRD))
    assert assignment.next_turn(client, 0.0) == SECOND
    assignment.take_back(client, [SECOND, THIRD])
    assert told.has == {0}
    assert assignment.next_turn(client, 9.0) is None
    assignment.give(client, [unknown(SECOND)])
    assert assignment.next_turn(client, 9.0) == SECOND


class Fetching(Told):
    """A client that keeps pauses as 2.16 does: they outlive `incremental_unassign`, and each assignment ends none."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[int] = set()
        self.changes = 0

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.changes += 1
        self.paused |= {place.partition for place in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self.changes += 1
        self.paused -= {place.partition for place in places}


class Fetched:
    """Two partitions that a client was given, as a lane wants them to be fetched."""

    def __init__(self) -> None:
        self.assignment, self.told = ClientAssignment(), Fetching()
        self.client = cast("Consumer", self.told)
        self.owned: dict[Key, OwnedPartition] = {one: OwnedPartition(one, WantedFetch(1)) for one in (FIRST, SECOND)}
        self.assignment.give(self.client, [known(FIRST), known(SECOND)])
        self.reconcile()

    def want(self, source: Partition, *, is_fetched: bool) -> None:
        self.owned[source].wanted = WantedFetch(1, is_fetched)
        self.assignment.doubt_fetch(source)

    def reconcile(self) -> set[int]:
        """Return the partitions that are paused from then on."""
        self.assignment.reconcile_fetches(self.client, self.owned)
        return self.told.paused


def test_what_the_lane_wants_last_is_done_and_nothing_is_done_twice() -> None:
    fetched = Fetched()
    fetched.want(FIRST, is_fetched=False)
    fetched.want(SECOND, is_fetched=False)
    fetched.want(SECOND, is_fetched=True)
    assert fetched.reconcile() == {0}
    changes = fetched.told.changes
    fetched.want(FIRST, is_fetched=False)
    assert (fetched.reconcile(), fetched.told.changes) == ({0}, changes)


def test_a_partition_that_the_client_is_given_again_is_fetched_only_if_the_lane_wants_it() -> None:
    fetched = Fetched()
    fetched.want(FIRST, is_fetched=False)
    fetched.reconcile()
    fetched.told.paused = {1}  # the client has forgotten a pause, and kept one that it should forget
    fetched.assignment.give_anew(fetched.client, [known(FIRST, 9), known(SECOND, 9)])
    assert fetched.reconcile() == {0}


def test_a_full_lane_has_nothing_fetched_and_later_only_what_it_wants() -> None:
    fetched = Fetched()
    fetched.assignment.choke(True)
    assert fetched.reconcile() == {0, 1}
    fetched.want(SECOND, is_fetched=False)
    fetched.assignment.give(fetched.client, [known(THIRD)])
    fetched.owned[THIRD] = OwnedPartition(THIRD, WantedFetch(1))
    assert fetched.reconcile() == {0, 1, 2}, "nor what is assigned meanwhile"
    fetched.assignment.choke(False)
    assert fetched.reconcile() == {1}
