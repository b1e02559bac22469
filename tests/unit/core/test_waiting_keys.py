"""What waits by keys: in whatever order copies are read, each record counts once, and a key's first is its lowest."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core import waiting_keys
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.waiting_keys import KEY_SHOWN, WaitingKeys, WaitingRecord
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from tests.sim.samples import WALL, record

QUEUE = Partition("billing-ORDERED-orders", 0)


def copy(
    at: int, origin: int, key: bytes | None, times: int = 0, redrives: int = 0, cycle: int = 0
) -> tuple[Record, RetryState, Order]:
    """A copy at offset `at` of the queue, of the record at `origin` of the main partition."""
    order = Order(origin)
    state = RetryState(f"orders:0:{origin}", "orders", times, redrives, WALL + at, WALL + origin, WALL, order=order)
    state = replace(state, cycle=cycle)
    return record(at, source=QUEUE, key=key, life=state), state, order


def keys_of(*copies: tuple[Record, RetryState, Order], by: OrderBy = "key", most: int = 1) -> WaitingKeys:
    keys = WaitingKeys(by, most)
    for one in copies:
        keys.add(*one)
    return keys


@pytest.mark.parametrize("seed", range(20))
def test_whatever_order_copies_are_read_in_each_record_counts_once_with_its_greatest_copy(seed: int) -> None:
    random = Random(seed)
    keys = (b"a", b"b", bytes(100), None)
    copies = [
        copy(3 * origin + times, origin, keys[origin % 4], times)
        for origin in range(40)
        for times in range(1 + random.randrange(3))
    ]
    greatest = {one[1].id: one[1].times for one in copies}
    random.shuffle(copies)
    found = keys_of(*copies, most=100)
    assert found.waiting == 40
    shown = {key.key: key for key in found.by_due() if key.key is not None}
    assert {key: [one.order.offset for one in shown[key].records] for key in shown} == {
        key: list(range(number, 40, 4)) for number, key in enumerate(keys[:3])
    }
    assert all(one.times == greatest[one.id] for key in found.by_due() for one in key.records)
    assert len([key for key in found.by_due() if key.key is None]) == 10, "a record without a key is one of its own"


def test_only_the_first_is_kept_and_all_are_counted() -> None:
    [key] = keys_of(*(copy(20 - origin, origin, b"a") for origin in reversed(range(10)))).by_due()
    assert (key.waiting, len(key.records), key.first.id) == (10, 1, "orders:0:0")
    assert key.oldest_at == WALL
    assert key.first.reason == "", "nothing was said of why it waits"
    [key] = keys_of(*(copy(20 + origin, origin, b"a") for origin in range(10))).by_due()
    assert key.oldest_at == WALL, "in whatever order they are read"


def test_a_redrive_stands_before_what_is_left_of_an_earlier_life() -> None:
    [key] = keys_of(copy(5, 0, b"a", times=9), copy(1, 0, b"a", times=1, redrives=1)).by_due()
    assert (key.first.redrives, key.first.times) == (1, 1)
    [key] = keys_of(copy(5, 0, b"a", times=9, redrives=2), copy(1, 0, b"a", times=1, cycle=1)).by_due()
    assert attempt_of(key.first) == Attempt(1, 0, 1)


def test_keys_come_by_when_they_are_due_and_a_partition_may_be_one_key() -> None:
    copies = (copy(9, 0, b"a"), copy(3, 1, b"b"))
    assert [key.key for key in keys_of(*copies).by_due()] == [b"b", b"a"]
    [key] = keys_of(*copies, by="partition").by_due()
    assert (key.key, key.waiting, key.first.id) == (None, 2, "orders:0:0")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_keys, "MOST_KEYS", 3)
    keys = keys_of(*(copy(number, number, b"%d" % number * 500) for number in range(5)))
    assert (len(keys.by_due()), keys.beyond, keys.waiting) == (3, 2, 5)
    assert {(len(key.key or b""), key.key_bytes) for key in keys.by_due()} == {(KEY_SHOWN, 500)}


@pytest.mark.parametrize(
    ("state", "due", "reason"),
    [
        (RetryState("orders:0:7", "orders", due_at=WALL, timestamp=5), WALL, ""),
        (RetryState("orders:0:7", "orders", due_at=WALL, timestamp=5, reason="http-503: busy"), WALL, "http-503"),
        (RetryState("orders:0:7", "orders", due_at=WALL, timestamp=5, behind=True), 0, ""),
        (RetryState("orders:0:7", "orders", timestamp=5, reason="http-503", parked=True, settled="n"), 0, "http-503"),
    ],
)
def test_a_record_that_waits_is_shown_with_its_class_of_reason_and_without_a_time_behind_another(
    state: RetryState, due: int, reason: str
) -> None:
    [key] = keys_of((record(3, source=QUEUE, key=None, life=state), state, Order(7))).by_due()
    waits = WaitingRecord("orders:0:7", Order(7), 0, 0, 0, due, 5, reason, state.behind, 3, state.parked, state.settled)
    assert key.first == waits
    assert (key.key, key.key_bytes, key.whole) == (None, 0, None)
    [key] = keys_of((record(3, source=QUEUE, key=b"a", life=state), state, Order(7))).by_due()
    assert (key.key, key.key_bytes, key.whole) == (b"a", 1, b"a")


def test_a_copy_of_a_record_that_is_not_among_the_first_changes_nothing_but_where_it_is_due() -> None:
    """Given three records of a key of which two are kept, then one more copy of the third is no fourth record."""
    [key] = keys_of(*(copy(at, origin, b"a", at) for at, origin in ((0, 0), (1, 1), (2, 2), (3, 2))), most=2).by_due()
    assert (key.waiting, key.shown, [one.order.offset for one in key.records]) == (3, 2, [0, 1])
