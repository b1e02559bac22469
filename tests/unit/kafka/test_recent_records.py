"""The records of queues that are at hand: what was read last, and copies of our own while there is room for them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from reconsume.sidecar.core.record import Record
from reconsume.sidecar.kafka.queues.queue_clients import RecentRecords
from tests.sim.ladder_rig import QUEUE
from tests.sim.samples import record

ROOM, EACH = 1_000, 100


def records(*offsets: int) -> list[Record]:
    return [replace(record(offset, source=QUEUE), weight=EACH) for offset in offsets]


def at_hand(recent: RecentRecords, offsets: Iterable[int]) -> list[int]:
    return [offset for offset in offsets if recent.take_record(QUEUE, offset, 1) is not None]


def test_what_was_read_last_pushes_out_what_was_read_before() -> None:
    recent = RecentRecords(ROOM)
    recent.keep(records(*range(15)))
    assert at_hand(recent, range(15)) == list(range(5, 15))


def test_what_is_due_stays_at_hand_however_much_is_written_behind_heads() -> None:
    recent = RecentRecords(ROOM)
    recent.keep(records(0, 1))
    recent.fill(records(*range(10, 30)))
    assert at_hand(recent, range(30)) == [0, 1, *range(10, 18)], "the first ones behind go first, and have the room"


def test_what_is_due_pushes_out_what_is_behind() -> None:
    recent = RecentRecords(ROOM)
    recent.fill(records(*range(20)))
    recent.keep(records(*range(50, 60)))
    assert at_hand(recent, range(60)) == list(range(50, 60))


def test_a_record_is_at_hand_once_and_for_its_assignment_alone() -> None:
    recent = RecentRecords(ROOM)
    for _ in range(3):
        recent.keep(records(1))
        recent.fill(records(1, 2))
    assert recent.take_record(QUEUE, 1, 2) is None
    assert recent.take_record(QUEUE, 2, 1) is not None
    assert at_hand(recent, (1, 2)) == []
    recent.fill(records(*range(10)))
    assert at_hand(recent, range(10)) == list(range(10)), "all of the room is free again"
