"""Copies are written again before Kafka may delete them, also those of a key whose head waits in memory for days."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import COMMITTED, Outcome, Postponed, Throttled
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from tests.sim.ladder_rig import FAIL, QUEUE, LadderRig, behind, waiting

HOUR = 3_600_000
STEP = 900_000
LASTS = 30
"""Hours, more than the shortest retention that a queue may have."""
Spell = Callable[[LadderRig], None]


@pytest.fixture
def rig() -> LadderRig:
    """A key whose head is out, and two records behind it."""
    rig = LadderRig()
    for state in (waiting(0), behind(1), behind(2)):
        rig.put(state)
    rig.take_over(main=Progress(3))
    rig.flow(10)
    assert rig.out() == [0]
    return rig


def ages(rig: LadderRig) -> list[int]:
    """How old each copy is that waits, in hours."""
    open_ones = sorted(rig.part(QUEUE).tracker.dropped | {sent.record.offset for sent in rig.sent})
    open_ones += [record.offset for way in rig.lane._waiting.by_way().values() for record in way]
    return [(rig.now.wall_ms - rig.log[offset].timestamp) // HOUR for offset in open_ones]


def answers(outcome: Outcome) -> Spell:
    """The service says the same all the time."""

    def spell(rig: LadderRig) -> None:
        if rig.sent:
            rig.answer(outcome)

    return spell


def in_place(max_times: int | None) -> Spell:
    """The ladder has ended, and the head fails."""

    def spell(rig: LadderRig) -> None:
        rules = replace(rig.policy, queued=False, drained=True, in_place=InPlace(30_000, max_times))
        rig.lane.apply_policy(rules, {})
        answers(FAIL)(rig)

    return spell


def nothing_is_sent(rig: LadderRig) -> None:
    """As in an outage."""
    answers(Postponed(1_000))(rig)
    rig.gate.doubts = 1


def held(rig: LadderRig) -> None:
    """An operator holds what the service has postponed."""
    answers(Postponed(1_000))(rig)
    rig.lane.hold(Holds([Hold("h")]), rig.now)


SPELLS = (answers(Throttled(600_000)), in_place(None), nothing_is_sent, held)


@pytest.mark.parametrize("spell", SPELLS, ids=["throttled", "in place", "an outage", "held"])
def test_no_copy_is_older_than_half_a_day_and_all_go_in_their_order_in_the_end(rig: LadderRig, spell: Spell) -> None:
    oldest = 0
    for _ in range(LASTS * HOUR // STEP):
        spell(rig)
        rig.flow(STEP)
        oldest = max(oldest, *ages(rig))
        assert set(rig.out()) <= {0}
    assert oldest <= 12
    rig.gate.doubts = 0
    rig.lane.hold(Holds(), rig.now)
    for offset in (0, 1, 2):
        rig.flow(HOUR)
        assert rig.out() == [offset]
        rig.answer(COMMITTED)


def test_what_was_throttled_or_postponed_is_not_early_by_it(rig: LadderRig) -> None:
    rig.run(4 * HOUR - 10)
    rig.answer(Postponed(8 * HOUR))
    rig.flow(7 * HOUR)
    assert (rig.out(), max(ages(rig)) < 4) == ([], True)
    rig.flow(HOUR - 1_000)
    assert rig.out() == []
    rig.flow(2_000)
    assert rig.out() == [0]


def test_tries_in_place_that_are_bounded_are_counted_on(rig: LadderRig) -> None:
    """They end by themselves; to count anew with each copy they would not."""
    for _ in range(LASTS * HOUR // STEP):
        in_place(100)(rig)
        if rig.sent and rig.sent[0].record.offset != 0:
            break
        rig.flow(STEP)
    assert rig.out() == [1], "the first one is a dead letter"
