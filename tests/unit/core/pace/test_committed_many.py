"""Many records that one answer commits leave the dispatcher as the same records do one after the other."""

from collections.abc import Callable

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Throttled
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.refusals import IN_A_ROW, Refusals
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Partition, Record
from tests.sim.samples import record

NOW = Now(0, 0)
MINE, OTHER = Partition("orders", 0), Partition("orders", 1)


class Line:
    """A lane that only sends."""

    has_open = True

    def __init__(self, dispatcher: Dispatcher, source: Partition, waiting: int) -> None:
        self.ready = ReadyFlows()
        self.ready.extend([record(offset, source=source) for offset in range(waiting)])
        dispatcher.join(self)

    def send(self, record: Record, now: Now) -> bool:
        return True

    def answered_in_bulk(self, now: Now) -> None:
        raise AssertionError("nothing is passed on together here")

    def out(self) -> list[int]:
        return [flow.out for flow in self.ready.flows.values()]


def throttled() -> Pace:
    pace = Pace(64)
    pace.note(record(0), Throttled(100), NOW)
    return pace


def all_out(pace: Pace, *lanes: tuple[Partition, int]) -> tuple[Dispatcher, list[Line]]:
    """A dispatcher with all records of these lanes out."""
    dispatcher = Dispatcher(pace)
    lines = [Line(dispatcher, source, waiting) for source, waiting in lanes]
    dispatcher.dispatch(NOW)
    assert dispatcher.in_flight == sum(waiting for _, waiting in lanes)
    return dispatcher, lines


def seen(dispatcher: Dispatcher, lines: list[Line]) -> tuple[object, ...]:
    dispatcher.check()
    pace = dispatcher.pace
    return dispatcher.in_flight, [line.out() for line in lines], pace.state, pace.limit, pace.answers.others


PACES: dict[str, Callable[[], Pace]] = {
    "at full pace": lambda: Pace(64),
    "in a slow start": lambda: Pace(1_000, start=40),
    "at the end of a slow start": lambda: Pace(64, start=62),
    "after a throttle": throttled,
}


def test_each_topic_of_a_level_that_topics_share_is_known_to_be_taken() -> None:
    """Given records of two topics that one answer commits, then neither is rejected any more."""
    dispatcher, _ = all_out(Pace(64), (MINE, 2))
    refusals = dispatcher.refusals = Refusals()
    for topic in ("orders", "bills"):
        for offset in range(IN_A_ROW):
            refusals.note(record(offset, source=Partition(topic, 0)), Failed("http-409"), NOW)
    assert len(refusals.refused) == 2
    dispatcher.committed_many([record(0, source=MINE), record(1, source=Partition("bills", 0))], NOW)
    assert (refusals.refused, refusals.rows) == ((), {})


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_as_one_after_the_other(pace: Callable[[], Pace], count: int) -> None:
    lanes = (OTHER, 2), (MINE, 5)
    together, one_by_one = all_out(pace(), *lanes), all_out(pace(), *lanes)
    committed = [record(offset, source=MINE) for offset in range(count)]
    together[0].committed_many(committed, NOW)
    for one in committed:
        one_by_one[0].answered(one, COMMITTED, NOW)
    assert seen(*together) == seen(*one_by_one)
    assert together[1][1].out() == [5 - count], "only the flow of these records has places free"


def test_the_lane_that_has_them_out_has_its_places_free() -> None:
    dispatcher, (fewer, enough, more) = all_out(Pace(64), (MINE, 2), (MINE, 3), (MINE, 4))
    dispatcher.committed_many([record(offset, source=MINE) for offset in range(3)], NOW)
    assert (fewer.out(), enough.out(), more.out()) == ([2], [0], [4])


def test_records_that_no_lane_knows_any_more_take_only_their_places_in_flight() -> None:
    dispatcher, (line,) = all_out(Pace(64), (OTHER, 4))
    dispatcher.committed_many([record(0, source=MINE), record(1, source=MINE)], NOW)
    assert (dispatcher.in_flight, line.out()) == (2, [4])


def test_suspects_that_were_cleared_by_time_are_out_no_more() -> None:
    dispatcher, _ = all_out(Pace(64), (MINE, 3))
    dispatcher.single_file.hung = {(MINE, 0), (MINE, 2), (OTHER, 1)}
    dispatcher.committed_many([record(offset, source=MINE) for offset in (0, 1)], NOW)
    assert dispatcher.single_file.hung == {(MINE, 2), (OTHER, 1)}
