"""The lines of ordered mode by themselves: whatever joins, leaves and goes, each key's records go one by one."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.lane.in_place_queues import InPlaceQueues, OrderBy
from reconsume.sidecar.core.record import Partition, Record
from tests.sim.samples import record

PLACES = (Partition("orders", 0), Partition("orders", 1), Partition("bills", 0))
KEYS = (None, b"", b"a", b"b")
JOIN = st.tuples(st.just("join"), st.sampled_from(PLACES), st.sampled_from(KEYS))
LEAVE = st.tuples(st.just("leave"), st.integers(0, 30), st.none())
DROP = st.tuples(st.just("drop"), st.sampled_from(PLACES), st.none())
Step = tuple[str, object, object]


class Model:
    """Plays steps on lines, and keeps for each line who has joined, who is free, and in which order they came free."""

    def __init__(self, by: OrderBy) -> None:
        self.by = by
        self.lines = InPlaceQueues(by)
        self.offset = 0
        self.joined: dict[object, list[int]] = defaultdict(list)
        self.freed: dict[object, list[int]] = defaultdict(list)
        self.free: list[Record] = []

    def line(self, record: Record) -> object:
        return (record.source, record.key if self.by == "key" else None)

    def play(self, step: Step) -> None:
        what, one, other = step
        getattr(self, what)(one, other)

    def join(self, place: Partition, key: bytes | None) -> None:
        self.offset += 1
        new = record(self.offset, source=place, key=key)
        if self.by == "key" and key is None:
            assert self.lines.enqueue(new), "a record without a key waits for nobody"
            assert self.lines.finish(new) is None
            return
        self.joined[self.line(new)].append(new.offset)
        if self.lines.enqueue(new):
            self.frees(new)

    def frees(self, record: Record) -> None:
        assert self.lines.enqueue(record), "the first of a line may ask as often as it likes"
        self.freed[self.line(record)].append(record.offset)
        self.free.append(record)

    def leave(self, which: int, _: object) -> None:
        if self.free:
            first = self.free.pop(which % len(self.free))
            following = self.lines.finish(first)
            assert self.lines.finish(first) is None, "who has left cannot leave again"
            if following is not None:
                self.frees(following)

    def drop(self, place: Partition, _: object) -> None:
        self.lines.drop([place])
        self.free = [record for record in self.free if record.source != place]
        for line in [line for line in self.joined if line[0] == place]:  # type: ignore[index]
            self.joined[line], self.freed[line] = [], []


@given(st.sampled_from(["key", "partition"]), st.lists(JOIN | JOIN | LEAVE | DROP, max_size=60))
def test_each_line_is_freed_one_by_one_in_the_order_in_which_it_was_joined(by: OrderBy, steps: list[Step]) -> None:
    model = Model(by)
    for step in steps:
        model.play(step)
        assert len({model.line(record) for record in model.free}) == len(model.free), "two of one line are free"
        for line, freed in model.freed.items():
            assert freed == model.joined[line][: len(freed)]
    while model.free:
        model.leave(0, None)
    assert model.freed == model.joined, "somebody waits for ever"


def test_what_waits_behind_the_first_of_a_line_can_be_let_go_and_the_first_stays() -> None:
    here, there = PLACES[:2]
    first, *behind = (record(offset, source=here, key=b"a") for offset in range(3))
    alone, other = record(3, source=here, key=b"b"), record(0, source=there, key=b"a")
    lines = InPlaceQueues("key")
    assert [lines.enqueue(one) for one in (first, *behind, alone, other)] == [True, False, False, True, True]
    assert lines.shed(here, {3}) == behind
    assert lines.finish(alone) is None, "its line is gone with it"
    assert not lines.enqueue(behind[0]), "the first is still out"
    assert lines.finish(first) is behind[0]
    assert lines.finish(other) is None
