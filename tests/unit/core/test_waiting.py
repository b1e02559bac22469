"""What waits in the memory of a lane: each record waits in one way, and goes, is taken back and is counted together.

Flows, agenda and key queues are indexes of the partitions' maps: `check` compares them after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.fetching import HOLD_WITHIN_MS
from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.order import KeyQueues, OrderBy
from reconsume.sidecar.core.partition import (
    AWAY,
    BEHIND,
    CALLED_OFF,
    DELAYED,
    OUT,
    READY,
    STOPPED,
    Entry,
    Kind,
    PartitionState,
    Where,
)
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.sidecar.core.waiting import SHARE, WaitingRecords
from tests.sim.samples import ORDERS, record

OTHER = Partition("bills", 0)
ROOM = 1 << 20


class Memory:
    """The waiting records of two partitions, with the maps and the agenda that they belong to."""

    def __init__(self, order: OrderBy | None = None, *, room: int = ROOM) -> None:
        self.partitions = {
            source: PartitionState(source, 1, Kind("main", None), Progress(0), Bounds()) for source in (ORDERS, OTHER)
        }
        self.agenda = Agenda(lambda _at_ms: None)
        keys = None if order is None else KeyQueues(order, named=True)
        self.waiting = WaitingRecords(self.partitions, self.agenda, room, keys)
        for source in self.partitions:
            self.waiting.ready.own(source)

    def begin(self, *records: Record) -> list[Entry]:
        """Begin records, as the lane does; the caller says how each waits."""
        begun = [self.partitions[one.source].offsets.begin(one.offset, READY, one) for one in records]
        return [entry for entry in begun if entry is not None]

    def release(self, *records: Record) -> None:
        """Let records go that need not wait for their time."""
        self.begin(*records)
        self.waiting.release_run(self.partitions[records[0].source], records)

    def delay(self, one: Record, until_ms: int) -> Entry:
        """Keep a record until its time."""
        (entry,) = self.begin(one)
        self.waiting.delay_record(self.partitions[one.source], entry, until_ms)
        return entry

    def stop(self, one: Record, hold: str = "") -> None:
        """Keep a record back."""
        self.begin(one)
        by = NotDelivered.HELD if hold else NotDelivered.UNPROVEN
        self.waiting.stop_record(self.partitions[one.source], one, by, hold)

    def take(self) -> Record:
        """Send the record whose turn it is."""
        first = next(iter(self.waiting.ready))
        self.waiting.ready.pick(first)
        offsets = self.partitions[first.source].offsets
        offsets.move(offsets.entries[first.offset], OUT)
        return first

    def finish(self, one: Record) -> None:
        """End a record, and let the next one of its key go."""
        self.partitions[one.source].offsets.finish(one.offset)
        if (following := self.waiting.next_of_key(one)) is not None:
            self.waiting.let_next(following)

    def go(self, source: Partition, *, stopped: bool) -> list[int]:
        """Let go what can be fetched again; return its offsets."""
        entries = self.waiting.take_back(self.partitions[source], stopped=stopped)
        for entry in entries:
            entry.record = None
            self.partitions[source].offsets.move(entry, AWAY)
        return sorted(entry.offset for entry in entries)

    def ways(self, source: Partition = ORDERS) -> dict[Where, list[int]]:
        """The offsets of a partition, by where its entries are."""
        self.waiting.check()
        self.agenda.check()
        found: dict[Where, list[int]] = {}
        self.partitions[source].offsets.check()
        for entry in self.partitions[source].offsets.entries.values():
            found.setdefault(entry.where, []).append(entry.offset)
        return found


def filled() -> Memory:
    """Of each partition a record that is ready (0), two that are delayed (2 until 50, 3 until 500), one behind its key
    (1), one that a gate has stopped (4) and one that is held (5)."""
    memory = Memory("key")
    for source in (ORDERS, OTHER):
        memory.release(*(record(offset, source=source, key=b"k") for offset in (0, 1)))
        memory.delay(record(2, source=source, key=b"x"), 50)
        memory.delay(record(3, source=source, key=b"y"), 500)
        memory.stop(record(4, source=source, key=b"z"))
        memory.stop(record(5, source=source, key=b"h"), "hold-1")
    return memory


ALL = {READY: [0], BEHIND: [1], DELAYED: [2, 3], STOPPED: [4, 5]}


def test_each_record_waits_in_one_way() -> None:
    memory = filled()
    assert memory.ways(ORDERS) == memory.ways(OTHER) == ALL


def test_a_partition_that_goes_takes_everything_of_it_along_and_nothing_else() -> None:
    memory = filled()
    memory.waiting.drop_partitions([memory.partitions[ORDERS]])
    assert memory.ways(ORDERS) == {CALLED_OFF: [0, 1, 2, 3, 4, 5]}
    assert memory.ways(OTHER) == ALL
    assert [one.source for one in memory.waiting.ready] == [OTHER]
    assert not memory.waiting.has_line(ORDERS, b"k")


@pytest.mark.parametrize("stopped", [True, False])
def test_what_can_be_fetched_again_is_taken_back_and_what_is_held_is_not(stopped: bool) -> None:
    memory = filled()
    assert memory.go(ORDERS, stopped=stopped) == [0, 1, 2, 3, 4][: 4 + stopped]
    assert memory.ways(ORDERS)[STOPPED] == ([5] if stopped else [4, 5])
    assert memory.ways(OTHER) == ALL


def test_what_was_tried_in_place_stays_because_its_count_is_kept_nowhere_else() -> None:
    memory = Memory()
    tried = replace(record(0), again=1)
    memory.release(tried)
    memory.delay(replace(tried, offset=1), 50)
    memory.stop(replace(tried, offset=2))
    assert memory.go(ORDERS, stopped=True) == []
    assert memory.ways() == {READY: [0], DELAYED: [1], STOPPED: [2]}


def test_a_done_record_lets_the_next_of_its_key_go() -> None:
    memory = filled()
    memory.waiting.drop_partitions([memory.partitions[OTHER]])
    memory.finish(memory.take())
    assert memory.ways() == {READY: [1], DELAYED: [2, 3], STOPPED: [4, 5]}


@pytest.mark.parametrize(
    ("most", "first", "order"), [(None, False, [9, 0, 4, 6]), (2, True, [0, 4, 9]), (0, True, [9])]
)
def test_stopped_records_try_again_by_their_offsets(most: int | None, first: bool, order: list[int]) -> None:
    memory = Memory()
    partition = memory.partitions[ORDERS]
    memory.begin(*(record(offset) for offset in (0, 4, 6, 9)))
    memory.waiting.ready.append(record(9))
    for offset in (6, 0, 4):
        memory.waiting.stop_record(partition, record(offset), NotDelivered.UNPROVEN)
    memory.waiting.let_try(partition, most, first=first)
    memory.ways()
    assert [one.offset for one in memory.waiting.ready] == order
    assert len(memory.waiting.stopped_by_gates(partition)) == 4 - len(order)


def test_what_an_operator_holds_goes_on_only_at_its_release() -> None:
    memory = filled()
    partition = memory.partitions[ORDERS]
    memory.waiting.let_try(partition, first=True)
    assert memory.ways()[STOPPED] == [5]
    memory.waiting.let_held(partition, lambda _one: False)
    assert memory.ways()[STOPPED] == [5]
    memory.waiting.let_held(partition, lambda one: one.key == b"h")
    assert memory.ways()[READY] == [0, 4, 5]
    assert next(iter(memory.waiting.ready)).offset == 5, "it goes before all others"


def test_a_record_is_released_at_its_time_and_never_before() -> None:
    memory = filled()
    memory.agenda.begin_tick()
    due = [entry for entry in memory.agenda.take_due(50) if isinstance(entry, Entry)]
    assert [entry.offset for entry in due] == [2, 2]
    for entry, source in zip(due, (ORDERS, OTHER), strict=True):
        memory.waiting.end_delay(entry)
        memory.waiting.release_record(memory.partitions[source], entry)
    memory.agenda.wake_for_first()
    assert memory.ways() == ALL | {READY: [0, 2], DELAYED: [3]}
    assert list(memory.agenda.take_due(499)) == []


def test_while_a_quarter_of_the_room_waits_no_record_joins_for_long() -> None:
    """Contract 2.3: what waits long must not keep the lane from the rest."""
    weight = record(0).weight
    memory = Memory(room=2 * SHARE * weight)
    seen = [memory.waiting.patience_ms]
    entries = []
    for offset in range(2):
        entries.append(memory.delay(record(offset), 50))
        seen.append(memory.waiting.patience_ms)
    memory.waiting.end_delay(entries[0])
    seen.append(memory.waiting.patience_ms)
    assert seen == [NEVER, NEVER, HOLD_WITHIN_MS, NEVER]


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_records_of_a_run_go_as_each_would_go_alone(order: OrderBy | None) -> None:
    """Given an order by key, records without a key and with one, then a run is no different from its records."""
    run = [record(offset, key=key) for offset, key in enumerate((b"a", None, b"a", b"b", None, b"b"))]
    single, together = Memory(order), Memory(order)
    for entry in single.begin(*run):
        single.waiting.release_record(single.partitions[ORDERS], entry)
    together.release(*run)
    assert single.ways() == together.ways()
    assert list(single.waiting.ready) == list(together.waiting.ready)


# --- the order of keys -----------------------------------------------------------------------------------------------


def offsets_of(records: Iterable[Record]) -> list[int]:
    return [one.offset for one in records]


def test_what_waits_of_a_key_is_taken_with_the_record_that_is_next() -> None:
    memory = Memory("key")
    memory.release(*(record(offset, key=key) for offset, key in enumerate((b"a", b"b", b"a", b"a"))))
    assert offsets_of(memory.waiting.ready) == [0, 1]
    following = memory.waiting.next_of_key(record(0, key=b"a"))
    assert following is not None
    assert offsets_of(memory.waiting.take_line(following)) == [2, 3]
    assert memory.waiting.next_of_key(record(0, key=b"a")) is None
    assert memory.waiting.has_line(ORDERS, b"b")
    assert not memory.waiting.has_line(ORDERS, b"a")


def test_the_next_of_a_key_is_ready_only_when_it_is_let_go() -> None:
    memory = Memory("key")
    memory.release(*(record(offset, key=b"a") for offset in (0, 1)))
    memory.take()
    following = memory.waiting.next_of_key(record(0, key=b"a"))
    assert following is not None
    assert offsets_of(memory.waiting.ready) == []
    memory.waiting.let_next(following)
    assert offsets_of(memory.waiting.ready) == [1]


def test_without_an_order_no_line_is_held_and_nothing_follows() -> None:
    memory = Memory()
    memory.release(record(0))
    assert memory.waiting.next_of_key(record(0)) is None
    assert memory.waiting.take_line(record(0)) == []
    assert not memory.waiting.has_line(ORDERS, b"k")


def shed(memory: Memory, from_offset: int) -> None:
    """Let go what is ready or behind its key, from an offset on, as a full lane does."""
    partition = memory.partitions[ORDERS]
    for entry in memory.waiting.take_back_ready(partition, from_offset):
        entry.record = None
        partition.offsets.move(entry, AWAY)


def lose(memory: Memory) -> None:
    """Give the partition up, and get it again."""
    memory.waiting.drop_partitions([memory.partitions[ORDERS]])
    memory.waiting.ready.own(ORDERS)


STEPS: dict[str, Callable[[Memory, Record], object]] = {
    "release": lambda memory, one: memory.release(one),
    "delay": lambda memory, one: memory.delay(one, one.offset),
    "stop": lambda memory, one: memory.stop(replace(one, key=None)),
    "hold": lambda memory, one: memory.stop(replace(one, key=None), "h"),
    "answer": lambda memory, _one: memory.waiting.ready and memory.finish(memory.take()),
    "try": lambda memory, one: memory.waiting.let_try(memory.partitions[ORDERS], 1, first=one.offset % 2 == 0),
    "free": lambda memory, _one: memory.waiting.let_held(memory.partitions[ORDERS], lambda held: held.offset % 2 == 0),
    "let go": lambda memory, one: memory.go(ORDERS, stopped=one.offset % 2 == 0),
    "make room": lambda memory, one: shed(memory, one.offset - 3),
    "lose": lambda memory, _one: lose(memory),
}


@pytest.mark.parametrize("order", [None, "key", "partition"])
@given(st.lists(st.sampled_from([*STEPS, "release", "release", "answer"]), max_size=60), st.integers(1, 3))
def test_after_any_steps_every_record_is_in_one_place_and_its_index_knows_it(
    order: OrderBy | None, steps: list[str], keys: int
) -> None:
    memory = Memory(order)
    for offset, step in enumerate(steps):
        STEPS[step](memory, record(offset, key=b"%d" % (offset % keys)))
        memory.ways()


# --- damage ----------------------------------------------------------------------------------------------------------


def no_place_in_its_flow(memory: Memory) -> None:
    memory.waiting.ready.pick(record(0, key=b"k"))


def no_first(memory: Memory) -> None:
    assert memory.waiting.keys is not None
    memory.waiting.keys.finish(record(0, key=b"k"))


def too_early(memory: Memory) -> None:
    entry = memory.partitions[ORDERS].offsets.entries[2]
    memory.agenda.set_time(entry, 7)


def of_other_weight(memory: Memory) -> None:
    entry = memory.partitions[ORDERS].offsets.entries[2]
    assert entry.record is not None
    entry.record = replace(entry.record, weight=1)


@pytest.mark.parametrize("damage", [no_place_in_its_flow, no_first, too_early, of_other_weight])
def test_an_index_that_does_not_agree_with_the_map_is_seen(damage: Callable[[Memory], None]) -> None:
    memory = filled()
    memory.ways()
    damage(memory)
    with pytest.raises(BrokenInvariantError):
        memory.ways()
