"""How much of a partition may be in memory, and when it goes on: each limit by its numbers (5.3, 8.8, 10.4)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import STOPPED, Kind, PartitionState, Pause
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.sidecar.core.room import AdmissionLimit, Room, SharedRoom
from tests.sim.samples import record

ROOM = 1_001
"""Odd, so that halves and quarters are not whole."""
MINE, BESIDE, THIRD = (Partition("orders", number) for number in range(3))
OTHER = Partition("bills", 0)
SHARED = Pause(0, 0, NotFetched.SHARE)
NOW = Now(0, 0)


class Part(NamedTuple):
    """What a lane has of one partition."""

    load: int = 0
    refused: int = 0
    held: int = 0
    retrying: int = 0
    done_a_second: int = 0
    paused: Pause | None = None
    blocked: str = ""


def room_of(
    parts: dict[Partition, Part], *, ordered: bool = False, slowed: bool = False, room: int = ROOM
) -> tuple[Room, dict[Partition, PartitionState]]:
    """The room of a lane of these partitions, and they."""
    pace, partitions = Pace(8), dict[Partition, PartitionState]()
    pace.outage.slowed = slowed
    memory = Room(room, partitions, pace, Agenda(lambda _at_ms: None), ordered=ordered)
    for source, part in parts.items():
        one = partitions[source] = PartitionState(source, 1, Kind("main", None), Progress(0), Bounds())
        for offset in range(part.held):
            entry = one.offsets.begin(offset, STOPPED, record(offset, source=source))
            assert entry is not None
            entry.stopped_by, entry.hold = NotDelivered.HELD, "h"
        one.throughput.done_a_second, one.offsets.tried = part.done_a_second, part.retrying
        one.paused, one.blocked = part.paused, part.blocked
        memory.add_bytes(one, part.load)
    memory.set_refused(Counter({source: part.refused for source, part in parts.items() if part.refused}))
    memory.end_look(NOW)
    memory.check()
    return memory, partitions


def limit(parts: dict[Partition, Part], *, ordered: bool = False, slowed: bool = False) -> AdmissionLimit:
    """The limit of the first partition."""
    memory, partitions = room_of(parts, ordered=ordered, slowed=slowed)
    return memory.limit_of(partitions[MINE])


ALONE: dict[str, tuple[Part, int | None, NotFetched]] = {
    "nothing slows it down": (Part(499), None, NotFetched.DISTANCE),
    "an outage in which the service answers": (Part(0), 500, NotFetched.MEMORY),
    "copies that fit beside the room": (Part(500, refused=500), NEVER + 500, NotFetched.DISTANCE),
    "copies that take of the room": (Part(600, refused=600), 450 + 600, NotFetched.MEMORY),
    "held in memory": (Part(1, held=1), 250, NotFetched.HELD),
    "held in memory and copies that take of the room": (Part(601, refused=600, held=1), 225 + 600, NotFetched.HELD),
    "retried in place": (Part(1, retrying=1), 250, NotFetched.MEMORY),
    "held and retried in place": (Part(1, held=1, retrying=1), 250, NotFetched.HELD),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_partition_that_is_alone_has_the_least_of_its_limits(name: str) -> None:
    part, most, because = ALONE[name]
    slowed = "outage" in name
    wanted = AdmissionLimit(True, NEVER if most is None else most, because)
    assert limit({MINE: part}, ordered=True, slowed=slowed) == wanted


@pytest.mark.parametrize(
    ("parts", "most", "because"),
    [
        ([Part(500), Part()], NEVER, NotFetched.DISTANCE),  # half of the room is not more than half
        ([Part(501)], NEVER, NotFetched.DISTANCE),  # alone
        ([Part(501), Part()], 500, NotFetched.SHARE),
        ([Part(501), Part(1)], 250, NotFetched.SHARE),
        ([Part(501), Part(1), Part(1)], 166, NotFetched.SHARE),
        ([Part(501), Part(), Part(), Part(1)], 250, NotFetched.SHARE),
        ([Part(501), Part(1), Part(), Part(1)], 125, NotFetched.SHARE),
        ([Part(501, done_a_second=300), Part(1)], 600, NotFetched.SHARE),  # what it gets done in two seconds
        ([Part(501, done_a_second=125), Part(1)], 250, NotFetched.SHARE),
        ([Part(251), Part(1, paused=SHARED)], NEVER, NotFetched.DISTANCE),  # another one's pause
        ([Part(250, paused=SHARED), Part()], NEVER, NotFetched.DISTANCE),
        ([Part(251, paused=SHARED), Part()], 500, NotFetched.SHARE),
        ([Part(251, paused=SHARED._replace(because=NotFetched.HELD)), Part()], NEVER, NotFetched.DISTANCE),
        ([Part(501, held=1), Part(1)], 250, NotFetched.HELD),
        ([Part(501, held=1), Part(1, held=1), Part(1)], 125, NotFetched.HELD),
        ([Part(501, retrying=1), Part(1)], 250, NotFetched.SHARE),  # in no order, it keeps nothing back
        ([Part(1), Part(600, refused=600)], 225, NotFetched.MEMORY),
    ],
)
def test_partitions_share_what_is_more_than_half_full(parts: list[Part], most: int, because: NotFetched) -> None:
    found = limit(dict(zip((MINE, BESIDE, THIRD, OTHER), parts, strict=False)))
    assert (found.most, found.because) == (most, because)


def test_the_smaller_of_share_and_outage_holds() -> None:
    def most_of(parts: dict[Partition, Part]) -> tuple[int, NotFetched]:
        found = limit(parts, slowed=True)
        return found.most, found.because

    assert most_of({MINE: Part(600), BESIDE: Part()}) == (250, NotFetched.MEMORY)
    assert most_of({MINE: Part(600), BESIDE: Part(1)}) == (250, NotFetched.MEMORY)
    assert most_of({MINE: Part(600), OTHER: Part(1), BESIDE: Part(1)}) == (125, NotFetched.SHARE)
    assert most_of({MINE: Part(1), BESIDE: Part(600, refused=600)}) == (225, NotFetched.MEMORY)


@pytest.mark.parametrize(("load", "roomy"), [(499, True), (500, False)])
def test_it_is_roomy_while_less_than_half_is_taken(load: int, roomy: bool) -> None:
    assert limit({MINE: Part(load)}).roomy is roomy


def test_a_partition_that_keeps_records_back_has_its_part_of_the_quarter_as_a_share_at_least() -> None:
    parts = {MINE: Part(501, held=1), BESIDE: Part(1), OTHER: Part(1), THIRD: Part(1)}
    memory, partitions = room_of(parts)
    assert (memory.share_of(partitions[MINE]), memory.share_of(partitions[BESIDE])) == (250, 83)


@pytest.mark.parametrize(
    ("part", "other", "slowed", "goes_on"),
    [
        (Part(187), Part(), True, True),  # a quarter of 250 is free
        (Part(188), Part(), True, False),
        (Part(227, refused=40), Part(), True, True),  # refused copies beside it take nothing of it
        (Part(228, refused=40), Part(), True, False),
        (Part(125, paused=SHARED), Part(200), False, True),  # half of a share of 250
        (Part(126, paused=SHARED), Part(200), False, False),
        (Part(165, refused=40, paused=SHARED), Part(200), False, True),
        (Part(166, refused=40, paused=SHARED), Part(200), False, False),
    ],
)
def test_a_pause_ends_with_a_quarter_free_or_half_of_a_share(
    part: Part, other: Part, slowed: bool, goes_on: bool
) -> None:
    memory, partitions = room_of({MINE: part, BESIDE: other}, slowed=slowed)
    assert memory.lets_go_on(partitions[MINE]) is goes_on


@pytest.mark.parametrize(
    ("part", "other", "crowds"),
    [
        (Part(refused=250), Part(), False),
        (Part(refused=251), Part(), True),
        (Part(refused=126), Part(refused=124), False),  # together they take half of the bytes
        (Part(refused=126), Part(refused=125), True),
        (Part(refused=125), Part(refused=126), False),
        (Part(refused=94), Part(refused=200), False),
        (Part(refused=94, blocked="x"), Part(refused=200), True),  # a quarter of its share must be free
        (Part(refused=93, blocked="x"), Part(refused=200), False),
    ],
)
def test_copies_crowd_where_they_take_more_than_their_share_of_half(part: Part, other: Part, crowds: bool) -> None:
    parts = {MINE: part._replace(load=part.refused), BESIDE: other._replace(load=other.refused)}
    memory, partitions = room_of(parts)
    assert memory.crowds_out(partitions[MINE]) is crowds


@pytest.mark.parametrize(("refused", "taken"), [(0, 900), (300, 600), (500, 400), (600, 400)])
def test_copies_take_of_the_room_only_what_has_none_beside_it(refused: int, taken: int) -> None:
    memory, _ = room_of({MINE: Part(900, refused=refused)})
    assert (memory.taken, memory.more_than_half) == (taken, taken > 500)


def test_it_is_full_beyond_its_room_with_what_is_under_way() -> None:
    memory, _ = room_of({MINE: Part(901), BESIDE: Part(100)})
    assert (memory.is_full_with(0), memory.is_full_with(1)) == (False, True)
    assert room_of({MINE: Part(1_002)})[0].is_full_with(0)


@pytest.mark.parametrize(("load", "goes_on"), [(250, True), (251, False)])
def test_a_pause_for_a_share_lasts_while_more_than_a_quarter_of_the_room_is_taken(load: int, goes_on: bool) -> None:
    parts = {MINE: Part(1, paused=SHARED), BESIDE: Part(load - 1), OTHER: Part()}
    memory, partitions = room_of(parts, room=1_000)
    assert (memory.limit_of(partitions[MINE]).because is NotFetched.DISTANCE) is goes_on


def test_a_partition_that_goes_leaves_nothing_behind() -> None:
    parts = {MINE: Part(400, refused=300), BESIDE: Part(200), OTHER: Part(70, refused=60)}
    memory, partitions = room_of(parts)
    for source, taken in ((MINE, 210), (BESIDE, 10), (OTHER, 0)):
        memory.forget_partition(partitions.pop(source))
        memory.check()
        assert memory.taken == taken
    assert memory.refused_bytes == {}


def shared_rooms(loads: list[int]) -> list[Room]:
    """Lanes of several groups that share 9 MiB, with so many bytes each."""
    shared, rooms = SharedRoom(9 << 20, len(loads)), list[Room]()
    for load in loads:
        room = Room(3 << 20, {}, Pace(8), Agenda(lambda _at_ms: None), ordered=False, shared=shared)
        partition = PartitionState(MINE, 1, Kind("main", None), Progress(0), Bounds())
        room.add_bytes(partition, load)
        rooms.append(room)
    return rooms


@pytest.mark.parametrize(
    ("loads", "most"),
    [
        ([0, 0, 0], 13 << 20),
        ([1 << 20, 1 << 20, 1 << 20], 13 << 20),
        ([5 << 20, 0, 0], 5 << 20),
        ([3 << 20, 3 << 20, 0], 5 << 20),
        ([7 << 20, 0, 0], 1 << 20),
        ([7 << 20, 3 << 20, 0], 1 << 20),
    ],
)
def test_a_lane_of_several_groups_may_have_a_mebibyte_and_twice_what_is_free(loads: list[int], most: int) -> None:
    assert {room.room for room in shared_rooms(loads)} == {most}


def test_one_hungry_group_gets_two_thirds_of_what_is_shared_and_the_next_one_still_finds_something() -> None:
    first, second, _ = rooms = shared_rooms([0, 0, 0])
    partition = PartitionState(MINE, 1, Kind("main", None), Progress(0), Bounds())
    for room in (first, second):
        while not room.is_full_with(1024):
            room.add_bytes(partition, 1024)
    assert first.load == pytest.approx(5 << 20, rel=0.01), "a mebibyte of its own, and 4 of 6 that are shared"
    assert second.load > 2 << 20
    assert sum(room.load for room in rooms) <= 9 << 20
    first.add_bytes(partition, -first.load)
    assert second.room > 5 << 20, "what is done is free for the others"
