"""When a client is of no more use: what it says of itself, of its group and of its partitions, look by look."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, Consumer

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.client_watch import (
    CALM,
    DEAF_AFTER,
    LONGEST_REST,
    REST,
    UNKNOWN_AFTER,
    ClientWatch,
    Useless,
)
from reconsume.sidecar.kafka.consumer.looks import LOOK_EVERY
from reconsume.sidecar.kafka.consumer.start_offsets import Start

MINE = Partition("orders", 0)
TOO_MANY = 4 * DEAF_AFTER


class Client:
    """A member, or one that knows that it is none any more."""

    def __init__(self) -> None:
        self.member = "member-1"

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:" + (7).to_bytes(4, sys.byteorder, signed=True) + f"billing\0{self.member}\0".encode() + b"\1"


class Watched:
    """A watch over a client that has read up to 41 of its one partition, whose log ends at `end`."""

    def __init__(self, end: int = 50) -> None:
        self.client, self.watch = Client(), ClientWatch()
        self.assignment = Assignment(cast("Any", None), start_at="earliest", lock_timeout=1.0)
        self.owned = self.assignment.owned_partitions[MINE] = OwnedPartition(MINE, WantedFetch(1), last=41)
        self.ends: dict[Partition, int] = {MINE: end}
        self.now = 1_000.0

    def look(self, *, is_cut_off: bool = False) -> Useless | None:
        """One look, ten seconds later, at the client as a member."""
        self.now += LOOK_EVERY
        return self.watch.why_replace(cast("Consumer", self.client), self.assignment, self.now, is_cut_off=is_cut_off)

    def listen(self) -> list[Partition]:
        """One look, ten seconds later, at a client of which all was taken that it had fetched: to what it is deaf."""
        self.now += LOOK_EVERY
        self.watch.emptied()
        return self.listen_again()

    def listen_again(self) -> list[Partition]:
        return self.watch.deaf_partitions(self.assignment, self.ends)

    def looks(self, count: int = TOO_MANY) -> int | None:
        """Look so often; return at which look the client was found to be of no use."""
        return next((number for number in range(count) if self.look() is not None), None)

    def deaf_at(self, count: int = TOO_MANY) -> int | None:
        """Look so often; return at which look the client was found to be deaf."""
        return next((number for number in range(count) if self.listen()), None)


def test_a_partition_that_says_nothing_for_thirty_seconds_while_it_has_records_is_deaf() -> None:
    watched = Watched()
    assert watched.deaf_at() == DEAF_AFTER
    assert LOOK_EVERY * (DEAF_AFTER + 1) <= 30, "the first look may be ten seconds behind the beginning"


def speaks(watched: Watched) -> None:
    watched.owned.arrivals += 1


def is_paused(watched: Watched) -> None:
    watched.owned.wanted = watched.owned.wanted._replace(is_fetched=False)


def was_sought(watched: Watched) -> None:
    watched.owned.wanted = watched.owned.wanted._replace(seek_count=watched.owned.seek_count + 1)


def was_assigned_anew(watched: Watched) -> None:
    watched.owned.wanted = watched.owned.wanted._replace(epoch=watched.owned.epoch + 1)


def is_at_the_end(watched: Watched) -> None:
    watched.owned.last = watched.ends[MINE] - 1


def is_at_the_end_behind_markers(watched: Watched) -> None:
    watched.owned.ended = watched.owned.last, watched.ends[MINE]


def is_not_answered_for(watched: Watched) -> None:
    watched.ends = {}


def was_choked(watched: Watched) -> None:
    watched.watch.choked()


def waits_for_its_offset(watched: Watched) -> None:
    watched.owned.awaits = Start(MINE, OFFSET_STORED, None)


def waits_for_its_turn(watched: Watched) -> None:
    watched.assignment.client.waiting[MINE] = 0.0


NOT_DEAF = (
    speaks,
    is_paused,
    was_sought,
    was_assigned_anew,
    is_at_the_end,
    is_at_the_end_behind_markers,
    is_not_answered_for,
    was_choked,
    waits_for_its_offset,
    waits_for_its_turn,
)


@pytest.mark.parametrize("happens", NOT_DEAF)
def test_a_partition_is_not_deaf_that_could_not_speak_or_has(happens: Any) -> None:
    """Each of these between two looks; it begins anew once that is over."""
    watched = Watched()
    for _ in range(TOO_MANY):
        happens(watched)
        assert not watched.listen()


def test_what_lies_unread_in_the_client_proves_nothing() -> None:
    """Its messages may be behind those of others for as long as the service is slow."""
    watched = Watched()
    for _ in range(TOO_MANY):
        watched.now += LOOK_EVERY
        assert not watched.listen_again()


@pytest.mark.parametrize("end", [3, 50])
def test_a_log_that_is_shorter_than_the_position_has_something_to_say_too(end: int) -> None:
    """A topic that was recreated: a client that hears it says that its offset is out of range."""
    assert Watched(end).deaf_at() == DEAF_AFTER


def test_a_partition_is_deaf_whose_first_end_or_record_never_comes() -> None:
    watched = Watched(end=0)
    watched.owned.last, watched.owned.awaits = -1, Start(MINE, OFFSET_BEGINNING, None)
    assert watched.deaf_at() == DEAF_AFTER


def test_a_member_that_the_group_has_put_out_and_that_does_not_join_is_unknown() -> None:
    """It ignored that for ever, read on what others own, and each of its transactions was aborted."""
    watched = Watched(end=42)
    assert watched.looks() is None
    watched.client.member = ""
    assert watched.look() is None, "the callback may be on its way"
    watched.client.member = "member-2"
    assert watched.looks() is None
    watched.client.member = ""
    assert watched.looks() == UNKNOWN_AFTER - 1
    assert watched.watch.replaced == {Useless.UNKNOWN: 1}


def test_a_client_without_partitions_may_join_for_as_long_as_it_takes() -> None:
    watched = Watched()
    watched.assignment.owned_partitions.clear()
    watched.client.member = ""
    assert watched.looks() is None


def test_an_overtaken_client_is_replaced_at_the_next_look() -> None:
    watched = Watched(end=42)
    watched.assignment.group.overtaken = True
    assert watched.look() is Useless.OVERTAKEN
    watched.assignment.group.end_membership()
    assert watched.looks() is None


def test_clients_that_are_overtaken_again_and_again_are_replaced_ever_more_seldom() -> None:
    """Each new client makes the group rebalance twice, in which others may be overtaken."""
    watched, at = Watched(end=42), list[float]()
    watched.assignment.group.overtaken = True
    while len(at) < 4:
        if watched.look() is not None:
            at.append(watched.now)
    assert [later - earlier for earlier, later in pairwise(at)] == [REST, 2 * REST, 4 * REST]
    while len(at) < 9:
        if watched.look() is not None:
            at.append(watched.now)
    assert at[-1] - at[-2] == LONGEST_REST
    watched.now += CALM
    assert watched.looks() == 0
    assert watched.looks(int(REST / LOOK_EVERY) + 1) is not None, "the rests begin again"


def test_a_client_that_is_cut_off_is_replaced_each_time() -> None:
    watched = Watched()
    assert [watched.look(is_cut_off=True) for _ in range(2)] == [Useless.CUT_OFF] * 2
    assert watched.watch.replaced == {Useless.CUT_OFF: 2}
