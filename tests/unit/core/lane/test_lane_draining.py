"""A drain: what a service does in its last seconds costs no record an attempt, and what Kafka has not heard is told."""

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import LeaveUncommitted, RetryInPlace, decide_draining
from reconsume.sidecar.core.outcome import COMMITTED, EXPIRED, NACKED, Failed, Outcome, Rejected
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.transitions import Commit, DeadLetter, Retry
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, policy, record
from tests.sim.samples import life as a_life

LOST = Failed("connection-lost", "", "broken_answer")
BAD = Failed("http-500")
LAST = policy(retries=0)


def drained(outcome: Outcome, *, closed: bool = True) -> Rig:
    """One record is out when the sidecar begins to drain, and ends so."""
    rig = Rig(policy=LAST)
    rig.assign(ORDERS)
    rig.take_offsets([0])
    if closed:
        rig.gate.close()
    rig.release(ORDERS)
    rig.answer(outcome)
    rig.settle()
    return rig


@pytest.mark.parametrize("outcome", [LOST, BAD])
def test_no_record_is_dead_lettered_for_a_service_that_goes_during_a_drain(outcome: Outcome) -> None:
    assert drained(outcome).kafka[ORDERS] == Progress(0, clean=True)
    assert drained(outcome, closed=False).kafka[ORDERS] == Progress(1, clean=True)


def test_a_record_that_the_service_itself_sends_to_the_dlq_goes_there_during_a_drain() -> None:
    assert drained(Rejected("bad-sku")).kafka[ORDERS] == Progress(1, clean=True)


@pytest.mark.parametrize(
    ("outcome", "made"),
    [
        (COMMITTED, Commit),
        (BAD, Retry),
        (LOST, LeaveUncommitted),
        (Failed("timeout", "", "timeout"), Retry),
        (EXPIRED, Retry),
        (NACKED, RetryInPlace),
        (Failed("retry-asked", level=-1), DeadLetter),
        (Rejected("bad-sku"), DeadLetter),
    ],
)
def test_only_a_connection_that_is_lost_means_something_else_while_retries_are_left(
    outcome: Outcome, made: type
) -> None:
    assert isinstance(decide_draining(record(0), outcome, policy(), WALL), made)


@pytest.mark.parametrize("outcome", [BAD, Failed("timeout", "", "timeout"), EXPIRED, NACKED])
def test_no_failure_is_the_last_one_during_a_drain(outcome: Outcome) -> None:
    assert isinstance(decide_draining(record(0), outcome, LAST, WALL), LeaveUncommitted)
    ordered = replace(policy(), in_place=InPlace(max_times=0))
    assert isinstance(decide_draining(record(0), BAD, ordered, WALL), LeaveUncommitted)


def test_a_retry_that_is_cut_off_keeps_its_count() -> None:
    again = record(0, life=a_life(times=3))
    assert isinstance(decide_draining(again, LOST, policy(), WALL), LeaveUncommitted)


def test_what_was_answered_and_is_not_in_kafka_when_a_partition_goes_is_left_behind() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets(range(4))
    rig.answer()
    rig.answer(BAD)
    rig.run(25)
    assert rig.batches, "the copy is on its way"
    assert rig.part().unsaved == 2
    rig.lane.ownership.lost([ORDERS])
    assert rig.lane.ownership.uncommitted_at_loss == 2


def test_nothing_is_left_behind_by_a_partition_that_is_given_up_in_order() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets([0, 3, 4, 9])
    rig.release(ORDERS)
    rig.answer_all()
    rig.settle()
    assert ORDERS not in rig.lane.ownership.partitions
    assert rig.lane.ownership.uncommitted_at_loss == 0
