"""Copies that replace each other in a ledger: the greatest one says where its record stands, and when it goes."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from reconsume.sidecar.core.lane.key_ledger import KeyLedger
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order

KEY, OTHER, ONE = b"k", b"other", (7, 1)


def copy(
    offset: int, times: int, *, key: bytes = KEY, order: Order | None = None, due_ms: int = 0, at: int = ONE[0]
) -> QueuedCopy:
    return QueuedCopy(offset, (at, 1), key, order or Order(at), Attempt(0, 0, times), due_ms)


def idle(_key: bytes) -> bool:
    return False


@pytest.mark.parametrize(
    ("newer", "blocked"),
    [(copy(4, 2), {8, 10}), (copy(4, 2, order=Order(9)), {10})],
    ids=["as before", "another order"],
)
def test_a_greater_copy_says_from_where_on_its_key_is_blocked(newer: QueuedCopy, blocked: set[int]) -> None:
    """One of the two was forged, or has the headers of another one: the ledger follows the last."""
    ledger = KeyLedger()
    ledger.read(copy(3, 1))
    assert ledger.read(newer) == [3], "the older one means nothing any more"
    ledger.check()
    assert {offset for offset in (8, 10) if ledger.lines.blocks(KEY, offset)} == blocked
    (entry,) = ledger.entries()
    assert (entry.offset, entry.order) == (4, newer.order)
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(idle) is entry


@pytest.mark.parametrize("times", [0, 1, 9])
@pytest.mark.parametrize("order", [Order(ONE[0]), Order(9)])
def test_a_copy_with_another_key_is_none_of_the_record_that_waits(times: int, order: Order) -> None:
    """It was forged, whatever its counts: the key of the record stays blocked, and no other one is."""
    ledger = KeyLedger()
    ledger.read(copy(3, 1))
    assert ledger.has_other_key(ONE, OTHER)
    assert ledger.read(copy(4, times, key=OTHER, order=order)) == [4]
    ledger.check()
    assert (ledger.lines.blocks(KEY, 8), OTHER in ledger.lines.by_key) == (True, False)
    assert not ledger.has_other_key(ONE, KEY)
    assert (ledger.knows(ONE, KEY), ledger.knows(ONE, OTHER)) == (True, False)


@pytest.mark.parametrize("phase", ["queued", "requested", "taken", "writing", "early", "later"])
def test_the_record_itself_takes_the_way_of_a_copy_with_another_key(phase: str) -> None:
    """The lane has read it from the main topic, so the other one was forged. What lies of that in the queue is done."""
    ledger = KeyLedger()
    ledger.read(copy(3, 1, key=OTHER))
    ledger.heads.advance(0, NEVER, idle)
    if phase != "queued":
        assert ledger.ask(idle) is not None
    if phase in ("taken", "writing", "early", "later"):
        assert ledger.taken(ONE, 3)
    if phase == "later":
        ledger.read(copy(4, 5, key=OTHER))
    if phase in ("writing", "early"):
        ledger.writing(ONE, OTHER, Order(ONE[0]), Attempt(0, 0, 2))
    if phase == "early":
        ledger.read(copy(4, 2, key=OTHER))
    lies = {"queued": [3], "requested": [3], "early": [4], "later": [4]}.get(phase, [])
    assert ledger.writing(ONE, KEY, Order(ONE[0]), Attempt(0, 0, 1)) == lies
    ledger.check()
    assert (ledger.lines.blocks(KEY, 8), OTHER in ledger.lines.by_key, len(ledger)) == (True, False, 1)
    assert not ledger.taken(ONE, 3), "the copy that was asked for is wanted no more"


def test_a_copy_that_was_read_before_the_commit_is_kept_when_its_record_is_written_once_more() -> None:
    ledger = KeyLedger()
    ledger.read(copy(3, 0))
    for _ in range(2):
        assert ledger.writing(ONE, KEY, Order(ONE[0]), Attempt(0, 0, 0)) == []
    ledger.written(ONE)
    ledger.check()
    assert [entry.offset for entry in ledger.entries()] == [3]


BEFORE = {
    "nothing": [],
    "an early one": [copy(3, 1)],
    "a later one": [copy(3, 2)],
    "another key's": [copy(3, 2, key=OTHER)],
    "one that was parked": [copy(3, 0, due_ms=NEVER)],
}


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_copy_that_is_told_with_its_commit_is_taken_in_as_if_it_were_read_after_it(
    before: list[QueuedCopy], *, parks: bool
) -> None:
    told, read = KeyLedger(), KeyLedger()
    own = copy(9, 1, due_ms=NEVER if parks else 60)
    for ledger in (told, read):
        ledger.read(copy(2, 0, at=8, due_ms=NEVER))
        ledger.writing(ONE, KEY, own.order, own.attempt)
        for one in before:
            ledger.read(one)
    assert told.written(ONE, own) == read.written(ONE) + read.read(own)
    told.check()
    assert [astuple(entry) for entry in told.entries()] == [astuple(entry) for entry in read.entries()]
    assert (told.parked_keys, told.heads.next_at()) == (read.parked_keys, read.heads.next_at())
    assert told.written((99, 1), copy(12, 0, at=99)) == [], "one of which nothing was known"
    assert told.entry((99, 1)) is not None


def test_a_number_that_a_redrive_gave_is_kept_with_the_order() -> None:
    ledger = KeyLedger()
    ledger.read(copy(3, 1, order=Order(ONE[0], 5)))
    assert [entry.order for entry in ledger.entries()] == [Order(ONE[0], 5)]


def test_what_is_to_be_tried_now_is_parked_no_more() -> None:
    ledger = KeyLedger()
    for at in (7, 9):
        ledger.read(copy(at, 1, at=at, due_ms=NEVER))
    ledger.read(copy(20, 2))
    ledger.check()
    assert [entry.identity for entry in ledger.parked()] == [(9, 1)]


def test_what_was_taken_aside_and_let_go_has_its_turn_again() -> None:
    """A record that was to be written again, and whose payload could not be read: its key would stand for ever."""
    ledger = KeyLedger()
    ledger.read(copy(3, 1))
    (entry,) = ledger.entries()
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.take_aside(entry)
    ledger.let_go(ONE)
    ledger.check()
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(idle) is entry


def test_heads_of_a_former_log_go_and_those_ahead_of_main_wait_as_before() -> None:
    ledger = KeyLedger()
    for at in (500, 400):
        ledger.read(copy(at, 1, at=at, key=b"%d" % at))
    ledger.heads.advance(0, 10, idle)
    assert (ledger.ask(idle), ledger.heads.lowest_ahead_of_main()) == (None, 400)
    ledger.heads.take_as_former(300, idle)
    assert [entry.order.offset for entry in iter(lambda: ledger.ask(idle), None)] == [400, 500]
    ledger.read(copy(20, 1, at=20, key=b"20"))
    ledger.heads.advance(0, 10, idle)
    assert (ledger.ask(idle), ledger.heads.lowest_ahead_of_main()) == (None, 20)
    ledger.heads.advance(0, 20, idle)
    assert ledger.ask(idle) is not None


def test_the_end_of_a_main_record_matters_only_to_a_head_that_has_waited_for_it() -> None:
    ledger = KeyLedger()
    ledger.read(copy(3, 1))
    ledger.heads.advance(0, NEVER, lambda key: key == KEY)
    assert [ledger.heads.main_ended(key) for key in (OTHER, KEY, KEY)] == [False, True, False]
