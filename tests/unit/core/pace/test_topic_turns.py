"""Ready records are kept as flows: topics take turns, and partitions within the turn of their topic."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Partition, Record
from tests.sim.samples import record

NOW = Now(0, 0)
SOURCES = tuple(Partition(topic, number) for topic in ("orders", "bills") for number in (0, 1))
WHAT = ("append", "extend", "put_first", "send", "answer", "take_back", "pick", "drop")
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.sampled_from(SOURCES), st.integers(0, 3)), max_size=40)


class Line:
    """A lane with a queue of records for each partition, which its flows are compared with."""

    has_open = True

    def __init__(self, places: int) -> None:
        self.gate, self.ready = Dispatcher(Pace(places)), ReadyFlows()
        self.gate.join(self)
        self.queues: dict[Partition, deque[Record]] = defaultdict(deque)
        self.out: list[Record] = []
        self._offset = 0

    def send(self, record: Record, now: Now) -> bool:
        assert record == self.queues[record.source].popleft(), "a partition keeps its order"
        self.out.append(record)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        """Nothing is answered in batches here."""

    def fresh(self, source: Partition, count: int) -> list[Record]:
        offsets = range(self._offset, self._offset + count)
        self._offset += count
        return [replace(record(offset, source=source), again=int(offset % 3 == 0)) for offset in offsets]

    def answer(self, count: int) -> None:
        for one in self.out[:count]:
            self.gate.answered(one, COMMITTED, NOW)
        del self.out[:count]

    def play(self, what: str, source: Partition, count: int) -> None:
        ready, queue, new = self.ready, self.queues[source], self.fresh(source, count)
        match what:
            case "append":
                for one in new:
                    ready.append(one)
                queue.extend(new)
            case "extend":
                ready.extend(new)
                queue.extend(new)
            case "put_first":
                ready.put_first(new)
                queue.extendleft(reversed(new))
            case "send":
                self.gate.dispatch(NOW)
                assert self.gate.in_flight > 0 or not ready
            case "answer":
                self.answer(count)
            case "take_back":
                assert ready.take_back(source) == [one for one in queue if not one.again]
                self.queues[source] = deque(one for one in queue if one.again)
            case "pick":
                if queue:
                    ready.pick(queue.pop())
            case _:
                ready.drop((source,))
                queue.clear()


@given(STEPS, st.integers(1, 12))
def test_a_partition_keeps_the_order_of_its_records_whatever_comes_goes_and_is_taken_back(
    steps: list[tuple[str, Partition, int]], places: int
) -> None:
    line = Line(places)
    for what, source, count in steps:
        line.play(what, source, count)
        line.gate.check()
        line.ready.check()
        assert len(line.ready) == sum(map(len, line.queues.values()))
        for one, queue in line.queues.items():
            assert list(line.ready.of(one)) == list(queue)
            assert line.ready.has(one) == bool(queue)
    while any(line.queues.values()):
        line.play("answer", SOURCES[0], places)
        line.play("send", SOURCES[0], 0)
    assert not line.ready


def sent(line: Line, count: int) -> list[tuple[str, int]]:
    """Topic and partition of the next records that go, one at a time."""
    turns = []
    for _ in range(count):
        line.gate.dispatch(NOW)
        turns.append((line.out[-1].source.topic, line.out[-1].source.number))
        line.play("answer", SOURCES[0], 1)
    return turns


def test_topics_take_turns_and_partitions_within_the_turn_of_their_topic() -> None:
    line = Line(1)
    for source in SOURCES[:3]:
        line.play("extend", source, 9)
    assert sent(line, 6) == [("orders", 0), ("bills", 0), ("orders", 1), ("bills", 0), ("orders", 0), ("bills", 0)]


def test_a_flow_that_begins_late_has_its_turn_after_one_record_of_each_other() -> None:
    line = Line(1)
    line.play("extend", SOURCES[0], 1_000)
    line.play("extend", SOURCES[1], 1_000)
    sent(line, 7)
    line.play("append", SOURCES[2], 1)
    assert ("bills", 0) in sent(line, 2)


def test_a_partition_that_is_released_is_forgotten_when_nothing_of_it_is_in_flight() -> None:
    line = Line(8)
    line.play("append", SOURCES[0], 1)
    line.gate.dispatch(NOW)
    line.play("drop", SOURCES[0], 0)
    line.ready.check()
    assert line.ready.topics["orders"].out == 1
    line.play("answer", SOURCES[0], 1)
    line.ready.check()
    assert not line.ready.topics
    assert not line.ready.flows


def test_a_turn_too_few_is_seen() -> None:
    flows = ReadyFlows()
    flows.append(record(0))
    flows.turns.clear()
    with pytest.raises(BrokenInvariantError, match=r"has one turn if it has ready records"):
        flows.check()
