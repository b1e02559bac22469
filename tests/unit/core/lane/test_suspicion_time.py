"""Time alone clears a partition only if none of its suspects can be still to come."""

import pytest

from sidecar.core.lane.partition import LanePartition
from sidecar.core.lane.suspicion import QUIET, Stage, Suspicion
from sidecar.core.lane.suspicion_time import IDLE, Step, after_time
from sidecar.core.progress import Progress, Tracker
from sidecar.core.record import Now
from tests.sim.samples import ORDERS


def step(
    watch: Suspicion, ms: int, *, load: int = 0, blocked: str = "", waits: bool = False, roomy: bool = True
) -> Step:
    """The step `ms` after the stage began."""
    part = LanePartition(ORDERS, 1, Tracker(Progress(0)), None, "main", load=load, blocked=blocked)
    watch.begin(Now(0, 0))
    return after_time(watch, part, Now(ms, ms), waits=waits, roomy=roomy)


def met(stage: Stage, culprit: int | None = None, left: frozenset[int] = frozenset()) -> Suspicion:
    return Suspicion(2, stage, culprit, met=True, left=set(left))


@pytest.mark.parametrize(
    ("ms", "load", "roomy", "expected"),
    [
        (IDLE - 1, 0, True, "stay"),
        (IDLE, 0, True, "together"),
        (IDLE, 9, True, "together"),
        (IDLE, 0, False, "leave"),
        (IDLE, 9, False, "together"),
        (QUIET, 0, True, "first"),
        (QUIET, 9, True, "together"),
        (QUIET, 0, False, "leave"),
    ],
)
def test_while_the_memory_is_full_a_partition_only_stops_holding_up_the_others(
    ms: int, load: int, roomy: bool, expected: Step
) -> None:
    assert step(met("alone"), ms, load=load, roomy=roomy) == expected


def test_before_any_record_has_come_and_while_suspects_are_left_it_only_stops_holding_up_the_others() -> None:
    assert step(Suspicion(2, "alone"), QUIET) == "leave"
    assert step(met("alone", left=frozenset({7})), QUIET, load=9) == "leave"


def test_records_that_wait_for_the_suspects_of_another_partition_keep_it_as_it_is() -> None:
    assert step(met("alone"), QUIET, load=9, waits=True) == "stay"


def test_a_culprit_that_is_not_read_yet_is_remembered() -> None:
    assert step(met("alone", culprit=7), QUIET) == "together"
    assert step(met("together", culprit=7), 10 * QUIET) == "stay"


def test_a_blocked_partition_holds_up_no_other() -> None:
    assert step(met("alone"), 0, load=9, blocked="refused") == "leave"


def test_together_ends_when_all_suspects_are_answered() -> None:
    watch = met("together")
    assert step(watch, QUIET, load=9) == "stay"
    watch.seen = watch.window
    assert step(watch, QUIET, load=9) == "first"


def test_where_no_record_alone_was_the_cause_the_rest_goes_together_with_fewer_deaths_against_it() -> None:
    before = Suspicion(4, "alone", 7, 100, 12, opening=True, opened=True, met=True, mark=3, left={3}, seen=9)
    after = before.calmed(3, 20)
    assert after == Suspicion(1, "together", 7, 100, 12, opening=True, opened=True, met=True, reach=19)
    assert before.calmed(1, 20).deaths == 0
    assert Suspicion(4, "alone", reach=5).calmed(3, 20).reach == 5
