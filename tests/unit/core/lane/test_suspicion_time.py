"""Time alone clears a partition only if none of its suspects can be still to come."""

import pytest

from reconsume.sidecar.core.lane.suspicion import IDLE_MS, QUIET_MS, Stage, Step, Suspicion
from reconsume.sidecar.core.record import Now


def step(suspicion: Suspicion, ms: int, *, load: int = 0, blocked: str = "", roomy: bool = True) -> Step:
    """The step `ms` after the stage began."""
    suspicion.begin(Now(0, 0))
    return suspicion.after_time(load, blocked, Now(ms, ms), unread=load == 0 and not roomy)


def met(stage: Stage, culprit: int | None = None, left: frozenset[int] = frozenset()) -> Suspicion:
    return Suspicion(2, stage, culprit, met=True, suspects=set(left))


@pytest.mark.parametrize(
    ("ms", "load", "roomy", "expected"),
    [
        (IDLE_MS - 1, 0, True, Step.STAY),
        (IDLE_MS, 0, True, Step.TO_FEW),
        (IDLE_MS, 9, True, Step.TO_FEW),
        (IDLE_MS, 0, False, Step.LEAVE),
        (IDLE_MS, 9, False, Step.TO_FEW),
        (QUIET_MS, 0, True, Step.TO_FRESH),
        (QUIET_MS, 9, True, Step.TO_FEW),
        (QUIET_MS, 0, False, Step.LEAVE),
    ],
)
def test_while_the_memory_is_full_a_partition_only_stops_holding_up_the_others(
    ms: int, load: int, roomy: bool, expected: Step
) -> None:
    assert step(met(Stage.SINGLE), ms, load=load, roomy=roomy) == expected


def test_before_any_record_has_come_and_while_suspects_are_left_it_only_stops_holding_up_the_others() -> None:
    assert step(Suspicion(2, Stage.SINGLE), QUIET_MS) == Step.LEAVE
    assert step(met(Stage.SINGLE, left=frozenset({7})), QUIET_MS, load=9) == Step.LEAVE


def test_records_that_wait_for_the_suspects_of_another_partition_keep_it_as_it_is() -> None:
    suspicion = met(Stage.SINGLE)
    suspicion.begin(Now(0, 0))
    suspicion.ready_at_ms = QUIET_MS  # the gate notes that some are ready
    assert step(suspicion, QUIET_MS, load=9) == Step.STAY


def test_a_culprit_that_is_not_read_yet_is_remembered() -> None:
    assert step(met(Stage.SINGLE, culprit=7), QUIET_MS) == Step.TO_FEW
    assert step(met(Stage.FEW, culprit=7), 10 * QUIET_MS) == Step.STAY


def test_a_blocked_partition_holds_up_no_other() -> None:
    assert step(met(Stage.SINGLE), 0, load=9, blocked="refused") == Step.LEAVE


def test_together_ends_when_all_suspects_are_answered() -> None:
    suspicion = met(Stage.FEW)
    assert step(suspicion, QUIET_MS, load=9) == Step.STAY
    suspicion.suspected = suspicion.window
    assert step(suspicion, QUIET_MS, load=9) == Step.TO_FRESH


def test_where_no_record_alone_was_the_cause_the_rest_goes_together_with_fewer_deaths_against_it() -> None:
    before = Suspicion(
        4, Stage.SINGLE, 7, 100, 12, opening=True, opened=True, met=True, mark=3, suspects={3}, suspected=9
    )
    after = before.narrowed(3, 20)
    assert after == Suspicion(1, Stage.FEW, 7, 100, 12, opening=True, opened=True, met=True, reach=19)
    assert before.narrowed(1, 20).deaths == 0
    assert Suspicion(4, Stage.SINGLE, reach=5).narrowed(3, 20).reach == 5
