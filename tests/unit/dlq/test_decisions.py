"""What the events since a decision say of it: carried out, overtaken by an answer, or nothing yet."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.dlq.settle import (
    WaitingRecord,
    decision_about,
    fault_of_decision,
    has_ended,
    outcome_of,
)
from reconsume.sidecar.dlq.settle_request import Decided
from reconsume.topics.decision_record import WAYS
from reconsume.topics.events import Event, State, event_of
from reconsume.topics.partition import Partition
from reconsume.topics.policy_record import fault_of_settlement
from reconsume.topics.retry_order import Order
from tests.sim.samples import WALL, life, record

STATE = life(times=2, order=Order(7))


def waiting(*, parked: bool = False, head: str = STATE.id) -> WaitingRecord:
    return WaitingRecord(record(3, source=Partition("billing-ORDERED-orders", 0)), replace(STATE, parked=parked), head)


def event(state: State, reason: str) -> Event:
    return event_of(replace(STATE, reason=reason), state, None, group="billing", instance="billing-0", at=WALL)


@pytest.mark.parametrize(
    ("how", "state"),
    [("commit", State.COMMIT), ("dead-letter", State.DLQ), ("retry-now", State.WAITING_RETRY)],
)
def test_the_event_of_a_decision_has_its_state_and_its_words(how: str, state: State) -> None:
    decision = decision_about(STATE, how, "seen", "ann")
    wanted = event(state, "by-operator: seen")
    answer = event(State.COMMIT, "http-500: no")
    assert outcome_of(decision, []) == Decided(None)
    assert outcome_of(decision, [answer, wanted]) == Decided(wanted, as_decided=True)
    assert outcome_of(decision, [answer]) == Decided(answer)
    other = event(state, "by-operator: what somebody else has decided before")
    assert outcome_of(decision, [other]) == Decided(other)


@pytest.mark.parametrize("how", WAYS)
def test_a_decision_is_for_this_wait_and_is_one_that_owners_carry_out(how: str) -> None:
    one, other = (decision_about(STATE, how, "seen", "ann") for _ in range(2))
    assert (one.redrives, one.times, one.position) == (0, 2, "")
    assert one.nonce != other.nonce
    assert fault_of_settlement(STATE.id, one) == ""


def test_only_the_head_of_a_key_can_be_tried_now() -> None:
    behind = waiting(head="orders:0:3")
    assert (waiting(parked=True).was, waiting().was, behind.was) == ("parked", "waiting", "behind")
    assert "orders:0:3" in fault_of_decision(behind, "retry-now")
    assert [fault_of_decision(behind, how) for how in ("commit", "dead-letter")] == ["", ""]
    assert fault_of_decision(waiting(parked=True), "retry-now") == ""


def test_a_decision_ends_with_the_wait_that_it_is_about() -> None:
    decision = decision_about(STATE, "retry-now", "seen", "ann")
    assert not has_ended(decision, STATE)
    assert not has_ended(decision, replace(STATE, settled="another"))
    assert has_ended(decision, None)
    assert has_ended(decision, replace(STATE, settled=decision.nonce))
    assert has_ended(decision, replace(STATE, times=3))
    assert has_ended(decision, replace(STATE, redrives=1))
