"""The gate: never more out than the pace allows, and each lane gets its turn."""

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, NotSent
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Record
from tests.sim.samples import record

NOW = Now(0, 0)


class Line:
    """A lane that only sends; records with an odd offset may not go when `picky`."""

    has_open = True

    def __init__(self, gate: Dispatcher, waiting: int, out: list["Line"], picky: bool = False) -> None:
        self.ready = ReadyFlows()
        self.ready.extend([record(offset) for offset in range(waiting)])
        self._out = out
        self._picky = picky
        self._gate = gate
        gate.join(self)

    def send(self, record: Record, now: Now) -> bool:
        if self._picky and record.offset % 2:
            return False
        self._out.append(self)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        self._gate.dispatch(now)


def test_lanes_take_turns() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(6))
    main, retry = Line(gate, 100, out), Line(gate, 100, out)
    gate.dispatch(NOW)
    assert out == [main, retry] * 3


def test_turns_go_on_over_many_single_places() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(1))
    main, retry = Line(gate, 100, out), Line(gate, 100, out)
    for _ in range(6):
        gate.dispatch(NOW)
        gate.answered(record(0), COMMITTED, NOW)
    assert out == [main, retry] * 3


def test_a_lane_with_nothing_to_send_leaves_its_places_to_the_other() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(6))
    Line(gate, 0, out)
    retry = Line(gate, 100, out)
    gate.dispatch(NOW)
    assert out == [retry] * 6


def test_a_record_that_may_not_go_takes_no_place() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(6))
    Line(gate, 9, out, picky=True)
    gate.dispatch(NOW)
    assert (len(out), gate.in_flight) == (5, 5)


def test_a_closed_gate_sends_nothing() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(6))
    Line(gate, 9, out)
    gate.closed = True
    gate.dispatch(NOW)
    assert not out


def test_nothing_is_sent_in_an_outage_until_the_probe() -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(2))
    Line(gate, 9, out)
    gate.dispatch(NOW)
    gate.answered(record(0), NotSent("refused"), NOW)
    gate.answered(record(0), NotSent("refused"), NOW)
    gate.dispatch(NOW)
    assert len(out) == 2
    gate.pace.tick(Now(0, gate.pace.probe_at_ms), gate.in_flight)
    gate.dispatch(NOW)
    assert len(out) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.integers(1, 5))
def test_never_more_is_out_than_the_pace_allows(steps: list[tuple[int, int]], full: int) -> None:
    out: list[Line] = []
    gate = Dispatcher(Pace(full))
    line = Line(gate, 0, out, picky=True)
    for more, back in steps:
        line.ready.extend([record(offset) for offset in range(more)])
        gate.dispatch(NOW)
        assert gate.in_flight <= gate.pace.limit
        assert gate.in_flight == gate.pace.limit or not line.ready
        for _ in range(min(back, gate.in_flight)):
            gate.answered(record(0), COMMITTED, NOW)


def test_a_gate_that_closes_sends_nothing_more_and_says_so() -> None:
    out: list[Line] = []
    told: list[bool] = []
    gate = Dispatcher(Pace(6))
    gate.at_close.append(lambda: told.append(gate.closed))
    Line(gate, 100, out)
    gate.close()
    gate.dispatch(NOW)
    assert (out, told) == ([], [True])
