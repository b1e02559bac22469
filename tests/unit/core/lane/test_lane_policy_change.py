"""Another policy while records are out and waiting: it holds for what is decided then, and for nothing before."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.outcome import Failed, NotSent, Throttled
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.record import Now, Partition
from tests.sim.rig import Rig
from tests.sim.samples import WALL, life, policy, record, waits

FAILURE = Failed("http-500")
TEN, NEW = Partition("billing-RETRY-10s", 0), Partition("billing-RETRY-3s", 0)


def at(steady: int) -> Now:
    return Now(WALL + steady, steady)


def topics(rig: Rig) -> list[str]:
    """Where the copies of the batch that is out go, in order."""
    writes = [write.topic for entry in rig.conclude().entries for write in entry.writes]
    return [topic for topic in writes if not topic.endswith("EVENTS")]


def test_a_failure_is_judged_by_the_policy_at_its_time() -> None:
    rig = Rig()
    rig.assign(Partition("orders", 0))
    rig.take_offsets([0, 1])
    rig.answer(FAILURE)
    rig.lane.apply_policy(policy(ladder=(3_000,)), {})
    rig.answer(FAILURE)
    rig.run(1_000)
    assert topics(rig) == ["billing-RETRY-10s"]
    rig.run(1_000)
    assert topics(rig) == ["billing-RETRY-3s"]
    rig.take_offsets([2])
    rig.lane.apply_policy(policy(retries=0), {})
    rig.answer(FAILURE)
    rig.run(1_000)
    assert topics(rig) == ["billing-DLQ"]


def test_what_waits_keeps_its_time_and_a_removed_levels_records_are_still_delivered() -> None:
    rig = Rig(retry=True)
    rig.assign(TEN)
    rig.take(record(0, source=TEN, timestamp=WALL - 9_500, life=life(due_at=WALL + 500)))
    other = policy(ladder=(3_000,), table=(3_000,))
    rig.lane.apply_policy(other, waits(other))
    rig.run(499)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [0]


def test_a_partition_of_a_new_level_waits_as_its_name_says() -> None:
    rig = Rig(retry=True)
    other = policy(ladder=(3_000,))
    rig.lane.apply_policy(other, waits(other))
    rig.assign(NEW)
    assert rig.lane.ownership.partitions[NEW].level_delay_ms == 3_000
    assert rig.lane.ownership.partitions[NEW].level == "3s"


@pytest.mark.parametrize("full", [2, 9])
def test_an_open_pace_is_as_wide_as_it_is_told(full: int) -> None:
    pace = Pace(4)
    pace.resize(full)
    assert (pace.full, pace.limit) == (full, full)


def test_a_throttled_pace_does_not_widen_by_being_told() -> None:
    pace = Pace(8)
    pace.note(record(0), Throttled(1_000), at(0))
    assert (pace.state, pace.limit) == (State.THROTTLED, 4)
    pace.resize(100)
    assert pace.limit == 4
    pace.resize(2)
    assert (pace.full, pace.limit) == (2, 2)


def test_an_outage_stays_an_outage() -> None:
    pace = Pace(8)
    pace.note(record(0), NotSent("refused"), at(0))
    pace.resize(3)
    assert (pace.state, pace.limit, pace.full) == (State.OUTAGE, 0, 3)
