"""A person decides about a record of a queue that memory keeps: tried in place, throttled, postponed, or held there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import NO_HOLDS, Hold, Holds
from reconsume.sidecar.core.outcome import Failed, NotSent, Outcome, Postponed, Throttled
from reconsume.sidecar.core.policy import InPlace
from reconsume.topics.transitions import Commit, DeadLetter, Requeue
from tests.sim.samples import WALL
from tests.unit.core.lane.test_queue_copies import PARKED, QUEUE, QueueRig

HOUR = 3_600_000
KINDS = {"dead-letter": DeadLetter, "commit": Commit, "retry-now": Requeue}
STAYS = (Failed("http-500"), Postponed(600_000), Throttled(60_000), NotSent("refused"))
"""After each of these the record comes again from memory, in a group whose ladder has ended."""
WAITS = STAYS[:3]
"""After these it waits for a while."""


@pytest.fixture
def rig() -> QueueRig:
    """A queue without a ladder whose head is out."""
    rig = QueueRig(replace(PARKED, parked=False, due_at=WALL))
    in_place = replace(rig.policy, queued=False, drained=True, in_place=InPlace(30_000))
    rig.lane.apply_policy(in_place, {})
    rig.run(10)
    rig.answer_all()
    rig.settle()
    rig.bring()
    assert [sent.record.source for sent in rig.sent] == [QUEUE]
    return rig


def decisions(rig: QueueRig) -> list[object]:
    """What is written of the queue's record, without any further answer."""
    return [entry.decision for batch in rig.settle() for entry in batch.entries if entry.record.source == QUEUE]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("outcome", STAYS)
def test_the_answer_comes_first_and_then_the_decision(rig: QueueRig, outcome: Outcome, how: str) -> None:
    rig.said(how)
    assert decisions(rig) == []
    rig.answer(outcome)
    (decision,) = decisions(rig)
    assert (type(decision), rig.sent) == (KINDS[how], [])


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("outcome", WAITS)
def test_what_waits_for_its_next_try_is_decided_at_once(rig: QueueRig, outcome: Outcome, how: str) -> None:
    rig.answer(outcome)
    rig.run(5)
    rig.said(how)
    (decision,) = decisions(rig)
    assert type(decision) is KINDS[how]
    rig.run(HOUR)
    assert rig.sent == []


@pytest.mark.parametrize("outcome", WAITS[:2])
def test_what_an_operator_holds_in_memory_is_decided_at_once(rig: QueueRig, outcome: Outcome) -> None:
    rig.answer(outcome)
    rig.lane.hold(Holds([Hold("h")]), rig.now)
    rig.run(HOUR // 2)
    rig.settle()
    assert rig.part(QUEUE).held_in_memory == 1
    rig.said("dead-letter")
    (decision,) = decisions(rig)
    assert isinstance(decision, DeadLetter)
    rig.lane.hold(NO_HOLDS, rig.now)
    rig.run(HOUR)
    assert rig.sent == []


def test_what_is_ready_while_nothing_is_sent_is_decided_at_once(rig: QueueRig) -> None:
    """An outage, a rate or a transaction in doubt may keep it for hours."""
    rig.answer(Postponed(1_000))
    rig.gate.doubts += 1
    rig.run(2_000)
    assert rig.lane.ready.has(QUEUE)
    rig.said("commit")
    (decision,) = decisions(rig)
    assert isinstance(decision, Commit)
    rig.gate.doubts -= 1
    rig.run(HOUR)
    assert rig.sent == []


@pytest.mark.parametrize("outcome", STAYS)
def test_a_decision_about_other_counts_or_one_that_was_withdrawn_changes_nothing(
    rig: QueueRig, outcome: Outcome
) -> None:
    rig.said("commit", counts=(0, 1))
    rig.said("commit", "n2")
    assert rig.lane.queues is not None
    rig.lane.queues.settle("orders:0:7", None, rig.now)
    rig.answer(outcome)
    rig.said("commit", "n3", counts=(1, 2))
    rig.run(HOUR)
    assert decisions(rig) == []
    assert len(rig.sent) == 1, "it is out again"
