"""Ready records are kept as flows: topics take turns, and partitions within the turn of their topic."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Partition, Record
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
        st.tuples(st.just("sent"), WHICH, st.just(0)),
        st.tuples(st.just("ended"), WHICH, st.just(0)),
        st.tuples(st.just("take_back"), WHICH, st.just(0)),
        st.tuples(st.just("drop"), WHICH, st.just(0)),
    ),
    max_size=40,
)


class Lines:
    """A queue of records for each partition, with what is out of it: what the flows are compared with."""

    def __init__(self) -> None:
        self.flows = ReadyFlows()
        self.records: dict[Partition, deque[Record]] = {source: deque() for source in SOURCES}
        self.out = Counter[Partition]()
        self._offset = 0

    def fresh(self, source: Partition, count: int) -> list[Record]:
        offsets = range(self._offset, self._offset + count)
        self._offset += count
        return [replace(record(offset, source=source), again=int(offset % 3 == 0)) for offset in offsets]

    def take(self) -> None:
        turn = self.flows.take()
        assert (turn is None) == (not any(self.records.values()))
        if turn is not None:
            flow, taken = turn
            assert taken == self.records[flow.source].popleft()

    def end(self, source: Partition) -> None:
        if self.out[source]:
            self.flows.ended(self.flows.flows[source])
            self.out[source] -= 1

    def play(self, what: str, source: Partition, count: int) -> None:
        flows, own, new = self.flows, self.records[source], self.fresh(source, count)
        match what:
            case "append":
                for one in new:
                    flows.append(one)
                own.extend(new)
            case "extend":
                flows.extend(new)
                own.extend(new)
            case "put_first":
                flows.put_first(new)
                own.extendleft(reversed(new))
            case "take":
                self.take()
            case "take_of" | "sent":
                taken = flows.take_of((source,))
                assert (None if taken is None else taken[1]) == (own.popleft() if own else None)
                if taken is not None and what == "sent":
                    flows.sent(taken[0])
                    self.out[source] += 1
            case "ended":
                self.end(source)
            case "take_back":
                assert flows.take_back(source) == [one for one in own if not one.again]
                self.records[source] = deque(one for one in own if one.again)
            case _:
                flows.drop((source,))
                own.clear()


@given(STEPS)
def test_a_partition_keeps_the_order_of_its_records_whatever_comes_goes_and_is_taken_back(
    steps: list[tuple[str, Partition, int]],
) -> None:
    lines = Lines()
    for what, source, count in steps:
        lines.play(what, source, count)
        lines.flows.check()
        ready = list(lines.flows)
        assert len(lines.flows) == len(ready)
        for one, records in lines.records.items():
            assert [ready_one for ready_one in ready if ready_one.source == one] == list(records)
            assert lines.flows.has(one) == bool(records)
    while any(lines.records.values()):
        lines.take()
    assert lines.flows.take() is None


def taken(flows: ReadyFlows, count: int) -> list[tuple[str, int]]:
    """Topic and partition of the next records that are taken."""
    turns = [flows.take() for _ in range(count)]
    return [(turn[1].source.topic, turn[1].source.number) for turn in turns if turn is not None]


def test_topics_take_turns_and_partitions_within_the_turn_of_their_topic() -> None:
    flows = ReadyFlows()
    for source in SOURCES[:3]:
        flows.extend([record(offset, source=source) for offset in range(9)])
    assert taken(flows, 6) == [("orders", 0), ("bills", 0), ("orders", 1), ("bills", 0), ("orders", 0), ("bills", 0)]


def test_a_flow_that_begins_late_has_its_turn_after_one_record_of_each_other() -> None:
    flows = ReadyFlows()
    flows.extend([record(offset, source=SOURCES[0]) for offset in range(1_000)])
    flows.extend([record(offset, source=SOURCES[1]) for offset in range(1_000)])
    taken(flows, 7)
    flows.append(record(0, source=SOURCES[2]))
    assert ("bills", 0) in taken(flows, 2)


def test_of_several_partitions_the_first_that_has_a_record_gives_it() -> None:
    flows = ReadyFlows()
    flows.extend([record(0, source=SOURCES[0]), record(1, source=SOURCES[0])])
    flows.append(record(7, source=SOURCES[1]))
    turn = flows.take_of((SOURCES[2], SOURCES[1], SOURCES[0]))
    assert turn is not None
    assert turn[1] == record(7, source=SOURCES[1])
    assert flows.take_of((SOURCES[1],)) is None
    assert [one.offset for one in flows] == [0, 1]


def test_a_flow_that_is_given_up_is_forgotten_when_nothing_of_it_is_out() -> None:
    flows = ReadyFlows()
    flows.append(record(0))
    turn = flows.take()
    assert turn is not None
    flows.sent(turn[0])
    flows.drop((turn[0].source,))
    flows.check()
    assert flows.topics["orders"].out == 1
    flows.ended(turn[0])
    flows.check()
    assert not flows.topics
    assert not flows.flows


def test_a_turn_too_few_is_seen() -> None:
    flows = ReadyFlows()
    flows.append(record(0))
    flows.turns.clear()
    with pytest.raises(BrokenInvariantError, match=r"has one turn if it has ready records"):
        flows.check()
