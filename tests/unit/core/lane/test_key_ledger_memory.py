"""What a record that waits costs in memory: thousands of them may stand behind one head."""

from __future__ import annotations

import tracemalloc

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.lane.key_ledger import KeyLedger
from reconsume.sidecar.core.lane.ledger_entry import FIRST_ATTEMPT, QueuedCopy, packed
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import LARGEST_OFFSET, Order

RECORDS = 2_000
FIRST, WALL = 70_000, 1_763_690_000_000
MOST = 220
"""Bytes of a record behind the head of its key: its entry, its identity and offset, and its part of the tables."""


def copy_of(number: int, now: int) -> QueuedCopy:
    """A copy as it is read: no object of it is any other's, but for the time at which all of them may go."""
    offset = FIRST + number
    identity = (int(str(offset)), WALL + number)
    return QueuedCopy(
        3 * offset, identity, bytes(bytearray(b"hot")), Order(int(str(offset))), Attempt(0, 0, 0), now, WALL, 900
    )


def test_a_record_behind_a_head_shares_what_it_has_in_common_with_the_others() -> None:
    ledger, now = KeyLedger(), FIRST
    tracemalloc.start()
    try:
        for number in range(RECORDS):
            copy = copy_of(number, now)
            if number % 2:  # this owner has written it
                main = copy_of(number, now)
                ledger.writing(main.identity, main.key, main.order, FIRST_ATTEMPT)
                ledger.written(main.identity)
            ledger.read(copy)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    ledger.check()
    assert taken / RECORDS < MOST


def test_the_copies_of_a_line_keep_their_order_when_newer_ones_come_in_their_place() -> None:
    ledger = KeyLedger()
    for number in (0, 2, 1, 3, 1, 0):
        ledger.read(
            replace(copy_of(number, 0), attempt=Attempt(0, 0, 1), offset=100 + len(list(ledger.entries())) + number * 7)
        )
        ledger.check()
    assert [entry.order.offset for entry in ledger.lines.largest(1)[0].entries] == [
        FIRST,
        FIRST + 1,
        FIRST + 2,
        FIRST + 3,
    ]


@pytest.mark.parametrize("offset", [0, 1, 7, LARGEST_OFFSET])
@pytest.mark.parametrize("timestamp", [0, 1, WALL, LARGEST_OFFSET])
def test_an_identity_in_one_number_is_the_same_and_sorts_as_it_does(offset: int, timestamp: int) -> None:
    ledger, one, other = KeyLedger(), (offset, timestamp), (7, WALL)
    ledger.read(replace(copy_of(0, 0), identity=one, order=Order(offset)))
    assert [entry.identity for entry in ledger.entries()] == [one]
    assert ledger.entry(one) is not None
    assert (packed(one) < packed(other)) == (one < other)
