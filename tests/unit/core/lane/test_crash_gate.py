"""The gate after crashes where something else comes in between: a revocation, a hold, a hung record (contract 1.10)."""

from __future__ import annotations

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.lane.suspicion import HUNG_MS, QUIET_MS, TRIES, Stage
from reconsume.sidecar.core.outcome import Throttled
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.transitions import DeadLetter
from tests.sim.samples import ORDERS, record
from tests.sim.suspect_rigs import commit, died, one_by_one, progress_of, rig_of, taken_up, work
from tests.unit.core.lane.test_crashing_record_hung import pass_time

WITHHELD = 40
"""More records than a gate lets try at once."""


def test_a_revoked_partition_takes_its_mark_away_while_a_hung_record_of_it_is_still_out() -> None:
    """A crash by the hung one would be blamed on the marked one, which was never delivered."""
    rig = taken_up(died(2), 0, 1)
    pass_time(rig, HUNG_MS - 1_000)
    assert rig.out_offsets() == [0]
    while not rig.batches or progress_of(rig.batches[0]).mark != 1:
        if rig.batches:
            rig.conclude()
        rig.run(250)
    given_up = rig.release(ORDERS)
    rig.conclude()
    assert progress_of(commit(rig)).mark is None
    assert (rig.out_offsets(), given_up) == ([0], [])


def test_a_partition_without_a_suspect_is_given_up_as_it_is() -> None:
    rig = rig_of()
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take_offsets([0])
    pass_time(rig, 2_000)
    assert (rig.part().suspicion, rig.out_offsets()) == (None, [0])
    given_up = rig.release(ORDERS)
    rig.answer()
    pass_time(rig, 2_000)
    assert given_up


def test_once_the_culprit_is_a_dead_letter_the_suspicion_ends_in_time() -> None:
    rig = taken_up(died(3, mark=1))
    pass_time(rig, 60_000)
    rig.take_offsets(range(3))
    work(rig, 2 * QUIET_MS)
    assert rig.kafka[ORDERS].next == 3
    assert rig.part().suspicion is None


def test_what_an_operator_holds_meanwhile_gives_its_turn_to_those_behind_it() -> None:
    rig = rig_of(concurrency=8)
    rig.assign(ORDERS, resume=died(1))
    rig.take(*(record(offset, key=b"bad" if offset < WITHHELD - 2 else b"good") for offset in range(WITHHELD)))
    assert not rig.sent, "nothing goes before its commit"
    rig.lane.hold(Holds([Hold("h", key=b"bad")]), rig.now)
    pass_time(rig, 2_000)
    assert rig.out_offsets() == [WITHHELD - 2, WITHHELD - 1]


def test_a_dead_letter_says_how_often_service_and_sidecar_crashed() -> None:
    rig = taken_up(died(3, mark=0), 0)
    (entry,) = [entry for batch in rig.settle() for entry in batch.entries]
    assert isinstance(entry.decision, DeadLetter)
    assert entry.decision.retry_state.reason == "crashed-service: service and sidecar died 3 times in a row"


def test_the_mark_of_a_partition_that_was_stopped_meanwhile_is_taken_away_and_its_record_waits() -> None:
    rig = taken_up(died(2))
    rig.take(record(0, fault="bad-header: x"))
    rig.run(30)
    rig.take_offsets([1])
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    assert progress_of(commit(rig)).mark == 1
    assert rig.part().blocked
    assert rig.sent == []
    assert progress_of(commit(rig)).mark is None
    assert rig.sent == []
    rig.settle()  # the topic is mended
    assert (rig.part().blocked, rig.kafka[ORDERS].mark, rig.out_offsets()) == ("", 1, [1])


def test_a_record_behind_all_suspects_ends_the_single_file_at_once() -> None:
    rig = taken_up(Progress(0, deaths=1, reach=0), 1)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert suspicion.stage is Stage.FEW


def test_a_suspect_that_was_cleared_and_comes_again_does_not_end_it() -> None:
    """Others that were in flight with it may be still to come."""
    rig = taken_up(Progress(0, deaths=1, reach=5), 0)
    for _ in range(TRIES):
        one_by_one(rig, [0], Throttled(10))
        rig.run(20)
    commit(rig)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert (suspicion.stage, suspicion.cleared, rig.out_offsets()) == (Stage.SINGLE, {0}, [])
