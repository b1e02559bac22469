"""What waits in a lane, waits in one object: it goes, is taken back and is counted together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import Partition, Record
from tests.sim.samples import ORDERS, record

OTHER = Partition("bills", 0)


def filled() -> WaitingRecords:
    """Of each partition a record that is ready (0), two that are delayed (2 until 50, 3 until 500), one behind its key
    (1), one withheld (4) and one held (5)."""
    waiting = WaitingRecords(1 << 20, "key")
    for source in (ORDERS, OTHER):
        waiting.release_run([record(offset, source=source, key=b"k") for offset in (0, 1)])
        waiting.delay(record(2, source=source, key=b"x"), 50)
        waiting.delay(record(3, source=source, key=b"y"), 500)
        waiting.withhold(record(4, source=source, key=b"z"))
        waiting.hold(record(5, source=source, key=b"h"))
    return waiting


def ways(waiting: WaitingRecords, source: Partition) -> dict[str, list[int]]:
    """The offsets of a partition, by the way in which they wait."""
    waiting.check()
    return {way: sorted(one.offset for one in found if one.source == source) for way, found in waiting.by_way().items()}


ALL = {"ready": [0], "delayed": [2, 3], "behind": [1], "withheld": [4], "held": [5]}
NOTHING: dict[str, list[int]] = {"ready": [], "delayed": [], "behind": [], "withheld": [], "held": []}


def test_each_record_waits_in_one_way() -> None:
    assert ways(filled(), ORDERS) == ways(filled(), OTHER) == ALL


def test_a_partition_that_goes_takes_everything_of_it_along_and_nothing_else() -> None:
    waiting = filled()
    waiting.drop([ORDERS])
    assert ways(waiting, ORDERS) == NOTHING
    assert ways(waiting, OTHER) == ALL


@pytest.mark.parametrize("withheld", [True, False])
def test_what_can_be_fetched_again_is_taken_back(withheld: bool) -> None:
    waiting = filled()
    taken = waiting.take_back(ORDERS, withheld=withheld)
    assert sorted(one.offset for one in taken) == [0, 1, 2, 3, 4][: 4 + withheld]
    assert ways(waiting, ORDERS) == NOTHING | {"held": [5]} | ({} if withheld else {"withheld": [4]})
    assert ways(waiting, OTHER) == ALL


def test_what_was_tried_in_place_stays_because_its_count_is_kept_nowhere_else() -> None:
    waiting = WaitingRecords(1 << 20, None)
    tried = replace(record(0), again=1)
    waiting.release(tried)
    waiting.delay(replace(tried, offset=1), 50)
    waiting.withhold(replace(tried, offset=2))
    assert waiting.take_back(ORDERS, withheld=True) == []
    assert ways(waiting, ORDERS) == NOTHING | {"ready": [0], "delayed": [1], "withheld": [2]}


def test_a_done_record_lets_the_next_of_its_key_go() -> None:
    waiting = filled()
    first = next(waiting.ready.of(ORDERS))
    waiting.ready.pick(first)
    waiting.done(first)
    assert ways(waiting, ORDERS) == ALL | {"ready": [1], "behind": []}


@pytest.mark.parametrize(
    ("most", "first", "order"), [(None, False, [9, 0, 4, 6]), (2, True, [0, 4, 9]), (0, True, [9])]
)
def test_withheld_records_try_again_by_their_offsets(most: int | None, first: bool, order: list[int]) -> None:
    waiting = WaitingRecords(1 << 20, None)
    waiting.release(record(9))
    for offset in (6, 0, 4):
        waiting.withhold(record(offset))
    waiting.let_try(ORDERS, most, first=first)
    waiting.check()
    assert [one.offset for one in waiting.ready] == order
    assert len(waiting.withheld(ORDERS)) == 4 - len(order)


def test_counts_are_of_what_waits_for_its_time_or_a_place() -> None:
    waiting = filled()
    assert waiting.count == 6
    assert waiting.count_by_topic() == {"orders": 5, "bills": 5}
    assert sorted(one.offset for one in waiting.overdue(50) if one.source == ORDERS) == [0, 2, 4]
    assert sorted(one.offset for one in waiting.put_off(50) if one.source == ORDERS) == [3]
    assert waiting.next_at() == 50


def out_of_order(waiting: WaitingRecords) -> None:
    waiting._withheld[ORDERS].insert(0, record(9))


def no_list(waiting: WaitingRecords) -> None:
    waiting._withheld[ORDERS].clear()


def no_turn(waiting: WaitingRecords) -> None:
    waiting.ready.turns.pop()


def no_first(waiting: WaitingRecords) -> None:
    assert waiting._in_place is not None
    waiting._in_place._first.clear()


def lighter(waiting: WaitingRecords) -> None:
    waiting._delayed._load_bytes -= 1


@pytest.mark.parametrize("breach", [out_of_order, no_list, no_turn, no_first, lighter])
def test_a_broken_store_is_seen(breach: object) -> None:
    waiting = filled()
    waiting.check()
    breach(waiting)  # type: ignore[operator]
    with pytest.raises(BrokenInvariantError):
        waiting.check()


def test_records_of_a_run_go_as_each_would_go_alone() -> None:
    """Given an order by key, records without a key and with one, then a run is no different from its records."""
    run: list[Record] = [record(offset, key=key) for offset, key in enumerate((b"a", None, b"a", b"b", None, b"b"))]
    for order in (None, "key", "partition"):
        single, together = WaitingRecords(1 << 20, order), WaitingRecords(1 << 20, order)  # type: ignore[arg-type]
        for one in run:
            single.release(one)
        together.release_run(run)
        assert ways(single, ORDERS) == ways(together, ORDERS)
        assert list(single.ready) == list(together.ready)
