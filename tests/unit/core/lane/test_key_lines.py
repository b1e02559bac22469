"""The names of lines, and the queues that go by them: what must go one after the other has one name."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.in_place_queues import LONGEST_NAME, InPlaceQueues, OrderBy, line_of
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import Partition, Record
from tests.sim.samples import ORDERS, life, record

OTHER = Partition("bills", 0)
LONG = b"x" * LONGEST_NAME


def queues(*keys: bytes | None, by: OrderBy = "key") -> InPlaceQueues:
    """Named queues of the records of one partition with these keys, offsets 0, 1, …"""
    lines = InPlaceQueues(by, named=True)
    for offset, key in enumerate(keys):
        lines.enqueue(record(offset, key=key))
    return lines


def offsets(records: list[Record]) -> list[int]:
    return [one.offset for one in records]


@pytest.mark.parametrize("key", [b"", b"a", b"\xff\x00", LONG])
def test_a_key_is_the_name_of_its_line(key: bytes) -> None:
    assert line_of(record(key=key), "key") == key


def test_a_long_key_is_known_by_its_digest() -> None:
    names = {line_of(record(key=LONG + more), "key") for more in (b"1", b"2", b"1" * 10_000)}
    assert len(names) == 3
    assert all(len(name) == 17 for name in names), "a ledger has place for it"
    assert line_of(record(1, key=LONG + b"1"), "key") in names


def test_a_record_without_a_key_has_a_line_of_its_own_and_its_copy_has_the_same() -> None:
    first, second = record(7, key=None), record(8, key=None)
    copy = record(99, source=Partition("billing-ORDERED-orders", 0), key=None, life=life())
    assert line_of(first, "key") != line_of(second, "key")
    assert line_of(copy, "key") == line_of(first, "key")
    assert line_of(record(7, key=first.id.encode()), "key") != line_of(first, "key")


@pytest.mark.parametrize("key", [None, b"a", LONG + b"1"])
def test_by_partition_all_records_have_one_line(key: bytes | None) -> None:
    assert line_of(record(key=key), "partition") == b""


@pytest.mark.parametrize(("by", "line"), [("key", b"a"), ("partition", b"")])
def test_a_line_is_held_while_a_record_of_it_is_first(by: OrderBy, line: bytes) -> None:
    lines = queues(b"a", b"a", by=by)
    assert lines.holds(ORDERS, line)
    assert not lines.holds(OTHER, line)
    lines.finish(record(0, key=b"a"))
    assert lines.holds(ORDERS, line)
    lines.finish(record(1, key=b"a"))
    assert not lines.holds(ORDERS, line)


def test_a_line_of_a_long_key_is_held_by_its_name() -> None:
    lines = queues(LONG + b"1")
    assert lines.holds(ORDERS, line_of(record(key=LONG + b"1"), "key"))
    assert not lines.holds(ORDERS, LONG + b"1")


@pytest.mark.parametrize(("by", "taken"), [("key", [0, 2]), ("partition", [0, 1, 2])])
def test_a_line_is_taken_whole_and_others_stay(by: OrderBy, taken: list[int]) -> None:
    lines = queues(b"a", b"b", b"a", by=by)
    assert offsets(lines.take_line(record(0, key=b"a"))) == taken
    assert lines.take_line(record(0, key=b"a")) == []
    assert lines.holds(ORDERS, b"b") is (by == "key")
    lines.check()


def test_what_waits_of_a_key_is_taken_with_the_record_that_is_next() -> None:
    waiting = WaitingRecords(1 << 20, "key", named=True)
    waiting.release_run([record(offset, key=key) for offset, key in enumerate((b"a", b"b", b"a", b"a"))])
    assert offsets(list(waiting.ready)) == [0, 1]
    following = waiting.next_of(record(0, key=b"a"))
    assert following is not None
    assert offsets(waiting.take_line(following)) == [2, 3]
    assert waiting.next_of(record(0, key=b"a")) is None
    assert waiting.holds(ORDERS, b"b")
    assert not waiting.holds(ORDERS, b"a")
    waiting.check()


def test_the_next_of_a_key_is_ready_only_when_it_is_let_go() -> None:
    waiting = WaitingRecords(1 << 20, "key", named=True)
    waiting.release_run([record(offset, key=b"a") for offset in (0, 1)])
    waiting.ready.pick(record(0, key=b"a"))
    following = waiting.next_of(record(0, key=b"a"))
    assert following is not None
    assert list(waiting.ready) == []
    waiting.let_next(following)
    assert offsets(list(waiting.ready)) == [1]


def test_without_an_order_no_line_is_held_and_nothing_follows() -> None:
    waiting = WaitingRecords(1 << 20, None)
    waiting.release(record(0))
    assert waiting.next_of(record(0)) is None
    assert waiting.take_line(record(0)) == []
    assert not waiting.holds(ORDERS, b"k")
