"""Ready records are kept as flows by partition, and go first in, first out over all of them."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.core.invariant import BrokenInvariantError
from sidecar.core.pace.flows import ReadyFlows
from sidecar.core.record import Partition, Record
from tests.sim.samples import record

SOURCES = tuple(Partition(topic, number) for topic in ("orders", "bills") for number in (0, 1))
WHICH = st.sampled_from(SOURCES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), WHICH, st.integers(1, 3)),
        st.tuples(st.just("extend"), WHICH, st.integers(0, 3)),
        st.tuples(st.just("put_first"), WHICH, st.integers(0, 3)),
        st.tuples(st.just("take"), WHICH, st.integers(1, 3)),
        st.tuples(st.just("take_of"), WHICH, st.integers(1, 2)),
        st.tuples(st.just("take_back"), WHICH, st.just(0)),
        st.tuples(st.just("drop"), WHICH, st.just(0)),
    ),
    max_size=40,
)


class Line:
    """One queue of all records, as a lane had before: what the flows are compared with."""

    def __init__(self) -> None:
        self.flows, self.records = ReadyFlows(), deque[Record]()
        self._offset = 0

    def fresh(self, source: Partition, count: int) -> list[Record]:
        offsets = range(self._offset, self._offset + count)
        self._offset += count
        return [replace(record(offset, source=source), again=int(offset % 3 == 0)) for offset in offsets]

    def remove(self, gone: list[Record]) -> None:
        self.records = deque(one for one in self.records if one not in gone)

    def play(self, what: str, source: Partition, count: int) -> None:
        flows, new = self.flows, self.fresh(source, count)
        match what:
            case "append":
                for one in new:
                    flows.append(one)
                self.records.extend(new)
            case "extend":
                flows.extend(new)
                self.records.extend(new)
            case "put_first":
                flows.put_first(new)
                self.records.extendleft(reversed(new))
            case "take":
                assert flows.take() == (self.records.popleft() if self.records else None)
            case "take_of":
                first = next((one for one in self.records if one.source == source), None)
                assert flows.has(source) == (first is not None)
                assert flows.take_of((source,)) == first
                self.remove([] if first is None else [first])
            case "take_back":
                gone = [one for one in self.records if one.source == source and not one.again]
                assert flows.take_back(source) == gone
                self.remove(gone)
            case _:
                flows.drop((source,))
                self.remove([one for one in self.records if one.source == source])


@given(STEPS)
def test_records_go_in_the_order_of_one_queue_whatever_comes_goes_and_is_taken_back(
    steps: list[tuple[str, Partition, int]],
) -> None:
    line = Line()
    for what, source, count in steps:
        line.play(what, source, count)
        line.flows.check()
        assert list(line.flows) == list(line.records)
        assert len(line.flows) == len(line.records)
    while line.records:
        assert line.flows.take() == line.records.popleft()
    assert line.flows.take() is None


def test_of_several_partitions_the_first_that_has_a_record_gives_it() -> None:
    flows = ReadyFlows()
    flows.extend([record(0, source=SOURCES[0]), record(1, source=SOURCES[0])])
    flows.append(record(7, source=SOURCES[1]))
    assert flows.take_of((SOURCES[2], SOURCES[1], SOURCES[0])) == record(7, source=SOURCES[1])
    assert flows.take_of((SOURCES[1],)) is None
    assert [one.offset for one in flows] == [0, 1]


def test_a_turn_too_few_is_seen() -> None:
    flows = ReadyFlows()
    flows.append(record(0))
    flows._turns.clear()
    with pytest.raises(BrokenInvariantError, match=r"has a turn for each of its ready records"):
        flows.check()
