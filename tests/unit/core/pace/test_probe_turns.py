"""Partitions in turn: who is probed next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.pace.probe_turns import ProbeTurns
from reconsume.sidecar.core.pace.shares import MostPlaces
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from tests.sim.samples import record
from tests.support.sidecar.paces import at

P = [Partition("orders", number) for number in range(5)]
FREE = MostPlaces(NEVER, NEVER, NEVER)
"""Nobody has so many places."""


def of(*numbers: int) -> ReadyFlows:
    """One record of each of these partitions, in this order."""
    ready = ReadyFlows()
    for offset, number in enumerate(numbers):
        ready.append(record(offset, source=P[number]))
    return ready


def numbers(ready: ReadyFlows) -> list[int]:
    """The partitions of the records in the order in which they are taken, until none is left."""
    return [taken[1].source.number for taken in iter(ready.take, None)]


def test_one_of_each_partition_comes_in_turn() -> None:
    ready = of(0, 0, 0, 0, 1, 2, 1)
    ProbeTurns().deal(ready, FREE)
    assert numbers(ready) == [0, 1, 2, 0, 1, 0, 0]


def test_the_partition_that_was_probed_least_recently_comes_first() -> None:
    turns, ready = ProbeTurns(), of(0, 0, 1, 2)
    turns.took(P[2])
    turns.took(P[0])
    turns.deal(ready, FREE)
    assert numbers(ready) == [1, 2, 0, 0]


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=5))
def test_nothing_is_lost_and_a_partitions_own_order_stays(sources: list[int], probed: list[int]) -> None:
    turns, ready = ProbeTurns(), of(*sources)
    for number in probed:
        turns.took(P[number])
    turns.deal(ready, FREE)
    after = [taken[1] for taken in iter(ready.take, None)]
    assert sorted(one.offset for one in after) == list(range(len(sources)))
    for place in P:
        own = [one.offset for one in after if one.source is place]
        assert own == sorted(own)


class Lane:
    """A lane that sends all; `kept` are partitions whose records it withholds."""

    has_open = True

    def __init__(self, gate: Dispatcher, ready: ReadyFlows, kept: tuple[int, ...] = ()) -> None:
        self.ready, self.out, self._kept = ready, list[Record](), kept
        gate.join(self)

    def send(self, record: Record, now: Now) -> bool:
        if record.source.number in self._kept:
            return False
        self.out.append(record)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        """Nothing is sent together here."""


def probes(gate: Dispatcher, lanes: list[Lane], times: int) -> list[tuple[int, int]]:
    """Lane and partition of each of so many probes, all of which are refused; the record stays at the head."""
    seen = []
    gate.pace.note(record(99), NotSent("refused"), at(0))
    for _ in range(times):
        gate.pace.tick(at(gate.pace.probe_at_ms), gate.in_flight)
        gate.dispatch(at(0))
        (place,) = [place for place, lane in enumerate(lanes) if lane.out]
        sent = lanes[place].out.pop()
        seen.append((place, sent.source.number))
        lanes[place].ready.put_first([sent])
        gate.answered(sent, NotSent("refused"), at(gate.pace.probe_at_ms))
    return seen


def test_probes_take_lanes_and_partitions_in_turn() -> None:
    gate = Dispatcher(Pace(8))
    lanes = [Lane(gate, of(0, 0, 0, 1, 2)), Lane(gate, of(3, 4))]
    assert probes(gate, lanes, 8) == [(0, 0), (1, 3), (0, 1), (1, 4), (0, 2), (1, 3), (0, 0), (1, 4)]


def test_a_partition_that_sends_nothing_loses_its_turn() -> None:
    gate = Dispatcher(Pace(8))
    lanes = [Lane(gate, of(0, 0, 1, 2), kept=(0,))]
    assert probes(gate, lanes, 4) == [(0, 1), (0, 2), (0, 1), (0, 2)]


def test_when_a_probe_opens_the_pace_the_partitions_are_still_dealt() -> None:
    """What was dealt for the probe stays so: the slow start goes on with the partitions in turn."""
    gate = Dispatcher(Pace(8, failures=3))
    for offset in range(3):
        gate.pace.note(record(offset), Failed("http-500"), at(0))
    lane = Lane(gate, of(0, 0, 0, 1, 2))
    gate.pace.tick(at(gate.pace.probe_at_ms), 0)
    gate.dispatch(at(0))
    gate.answered(lane.out[0], COMMITTED, at(200))
    gate.dispatch(at(200))
    assert gate.pace.state is State.OPEN
    assert [one.source.number for one in lane.out] == [0, 1, 2]


def test_of_two_topics_the_one_that_was_probed_least_recently_comes_first() -> None:
    turns, ready = ProbeTurns(), ReadyFlows()
    for topic in ("bills", "orders"):
        ready.append(record(0, source=Partition(topic, 0)))
    turns.took(Partition("orders", 0))
    turns.took(Partition("bills", 0))
    turns.deal(ready, FREE)
    assert [taken[1].source.topic for taken in iter(ready.take, None)] == ["orders", "bills"]


def probed_beside(hung: Partition, places: int, *others: Partition) -> list[Partition]:
    """The partitions of three probes, each of which hangs, beside a flow that has all places which it may take."""
    gate, ready = Dispatcher(Pace(places)), ReadyFlows()
    lane = Lane(gate, ready)
    for other in others:
        ready.own(other)
    for offset in range(places + 3):
        ready.append(record(offset, source=hung))
    gate.dispatch(at(0))
    out = len(lane.out)
    gate.pace.note(record(99), NotSent("refused"), at(0))
    for offset, other in enumerate(others):
        ready.append(record(offset, source=other))
    for _ in range(3):
        now = at(gate.pace.probe_at_ms)
        gate.pace.tick(now, gate.in_flight)
        gate.dispatch(now)
    gate.check()
    return [record.source for record in lane.out[out:]]


BILLS, MAILS = Partition("bills", 0), Partition("mails", 0)


@pytest.mark.parametrize("places", [2, 3, 8, 64])
def test_a_topic_whose_probes_hang_takes_no_place_of_others_by_them(places: int) -> None:
    """What hangs keeps its place when the outage is over: due retries of others waited for its end then."""
    assert probed_beside(P[0], places, BILLS, MAILS)[:2] == [BILLS, MAILS]


@pytest.mark.parametrize("places", [4, 8, 64])
def test_a_partition_whose_probes_hang_takes_no_place_of_the_others_of_its_topic(places: int) -> None:
    assert probed_beside(P[0], places, P[1], BILLS)[:2] == [P[1], BILLS]


def test_a_flow_that_leaves_no_reserve_is_not_probed_although_no_other_has_records() -> None:
    """The next record of another one goes at once then, and shows whether the service is well."""
    assert probed_beside(P[0], 8, BILLS, P[1])[2:] == []


def test_where_there_is_no_reserve_probes_go_whatever_is_out() -> None:
    assert probed_beside(P[0], 8) == [P[0]] * 3
    assert probed_beside(P[0], 1, BILLS)[2:] == [P[0]]
