"""Partitions in turn: who is probed next."""

import pytest

from reconsume.sidecar.core.outcome import NotSent
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Partition, Record
from tests.sim.samples import record
from tests.support.sidecar.paces import at

P = [Partition("orders", number) for number in range(5)]


def of(*numbers: int) -> ReadyFlows:
    """One record of each of these partitions, in this order."""
    ready = ReadyFlows()
    for offset, number in enumerate(numbers):
        ready.append(record(offset, source=P[number]))
    return ready


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
        moment = at(gate.pace.probe_at_ms)
        gate.pace.tick(moment, gate.in_flight)
        gate.dispatch(moment)
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


def test_of_two_topics_the_one_that_was_probed_least_recently_comes_first() -> None:
    gate, ready = Dispatcher(Pace(8)), ReadyFlows()
    for topic in ("bills", "orders"):
        ready.append(record(0, source=Partition(topic, 0)))
    lane = Lane(gate, ready)
    gate.pace.note(record(99), NotSent("refused"), at(0))
    topics = []
    for _ in range(4):
        moment = at(gate.pace.probe_at_ms)
        gate.pace.tick(moment, gate.in_flight)
        gate.dispatch(moment)
        topics.append(lane.out[-1].source.topic)
        gate.answered(lane.out[-1], NotSent("refused"), at(gate.pace.probe_at_ms))
        ready.put_first([lane.out.pop()])
    assert topics == ["bills", "orders"] * 2


def test_a_partition_that_sends_nothing_loses_its_turn() -> None:
    gate = Dispatcher(Pace(8))
    lanes = [Lane(gate, of(0, 0, 1, 2), kept=(0,))]
    assert probes(gate, lanes, 4) == [(0, 1), (0, 2), (0, 1), (0, 2)]


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
