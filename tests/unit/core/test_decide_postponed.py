"""A postponed record comes again uncounted, from memory or from a level topic that says since when: not for ever."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import Postpone, decide
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Postponed, Rejected
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.retry_headers import RETRY_POSTPONED_AT, RetryState, parse_retry_headers
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Hop, Retry, Wait, after_wait
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record

POLICY = policy()
HOUR = 3_600_000


def test_a_short_postponement_waits_in_memory() -> None:
    assert decide(record(7), Postponed(9_999), POLICY, WALL) == Postpone(9_999)


def test_a_long_one_waits_in_a_level_topic_uncounted_and_says_since_when() -> None:
    """Given a fresh record, then its copy has no retry, no event, and the time of the first postponement."""
    decision = decide(record(7), Postponed(60_000), POLICY, WALL)
    assert isinstance(decision, Hop)
    (copy,) = writes_of(record(7), decision, POLICY, WALL)
    found = parse_retry_headers(copy.headers, POLICY.topics, WALL + HOUR)
    assert isinstance(found, RetryState)
    assert (found.times, found.due_at, found.postponed_at) == (0, WALL + 60_000, WALL)
    assert parse_rendered(copy.headers, POLICY.topics, WALL + HOUR) is None, "the strict parser has read it"


@pytest.mark.parametrize(("after", "level"), [(10_000, 10_000), (60_000, 60_000), (90_000, 60_000)])
def test_a_long_one_waits_in_the_longest_level_that_fits(after: int, level: int) -> None:
    decision = decide(record(7), Postponed(after), POLICY, WALL)
    assert isinstance(decision, Hop)
    assert (decision.level, decision.retry_state.due_at) == (level, WALL + after)


def test_the_attempts_that_are_counted_in_memory_go_with_its_copy() -> None:
    decision = decide(replace(record(7, life=life(2)), again=3), Postponed(60_000), POLICY, WALL)
    assert isinstance(decision, Hop)
    assert decision.retry_state.times == 5


def test_in_memory_the_first_postponement_counts_until_an_attempt_fails() -> None:
    waiting = record(7).postponed(WALL).postponed(WALL + 5)
    assert waiting.postponed_at_ms == WALL
    assert waiting.tried(WALL + 9).postponed_at_ms == 0


def test_one_below_the_shortest_level_goes_to_the_ready_topic_whose_reader_bounds_what_waits_in_memory() -> None:
    rare = policy(ladder=(300_000, HOUR), table=(300_000, HOUR))
    decision = decide(record(7), Postponed(120_000), rare, WALL)
    assert isinstance(decision, Hop)
    (copy,) = writes_of(record(7), decision, rare, WALL)
    assert copy.topic == rare.names.ready
    waiting = record(7, life=decision.retry_state)
    assert isinstance(after_wait(waiting, rare, WALL), Wait)
    assert after_wait(waiting, rare, WALL, patience=1_000) == Hop(decision.retry_state, 300_000)


def test_the_time_of_the_first_postponement_stays_through_hops_and_further_postponements() -> None:
    waiting = record(7, life=replace(life(3), due_at=WALL + HOUR, postponed_at=WALL - 5))
    hop = after_wait(waiting, POLICY, WALL)
    assert isinstance(hop, Hop)
    assert dict(writes_of(waiting, hop, POLICY, WALL)[0].headers)[RETRY_POSTPONED_AT] == b"%d" % (WALL - 5)
    again = decide(waiting, Postponed(30_000), POLICY, WALL)
    assert isinstance(again, Hop)
    assert (again.retry_state.postponed_at, again.retry_state.times) == (WALL - 5, 3)


@pytest.mark.parametrize("after", [1_000, 60_000])
def test_beyond_the_limit_a_postponement_is_a_failure(after: int) -> None:
    """Given an hour since the first one, in memory or in a copy, then a retry is spent, and the time is forgotten."""
    for waiting in (record(7).postponed(WALL), record(7, life=replace(life(1), postponed_at=WALL))):
        assert not isinstance(decide(waiting, Postponed(after), POLICY, WALL + HOUR - 1), Retry)
        failed = decide(waiting, Postponed(after), POLICY, WALL + HOUR)
        assert isinstance(failed, Retry)
        assert failed.retry_state.reason.startswith("postponed")
        assert (failed.retry_state.times, failed.retry_state.postponed_at) == (waiting.times + 1, 0)


@pytest.mark.parametrize("outcome", [Failed("http-500"), Rejected("no")])
def test_a_failure_forgets_the_postponement(outcome: Failed | Rejected) -> None:
    decision = decide(record(7, life=replace(life(1), postponed_at=WALL)), outcome, POLICY, WALL)
    assert isinstance(decision, Retry | DeadLetter)
    assert RETRY_POSTPONED_AT not in dict(writes_of(record(7), decision, POLICY, WALL)[0].headers)


def test_in_order_and_in_broadcast_it_waits_in_memory_alone() -> None:
    """Given records whose order counts, or of which nothing is kept, then no copy is written, however long the wait."""
    for special in (replace(POLICY, in_place=InPlace()), replace(POLICY, broadcast=True)):
        assert decide(record(7), Postponed(900_000), special, WALL) == Postpone(900_000)


def test_a_success_after_postponements_alone_tells_nothing() -> None:
    """Given a copy of a record that never failed, then no event told of it before, and none does now."""
    assert decide(record(7, life=life(0)), COMMITTED, POLICY, WALL) == Commit(None)
    assert decide(record(7, life=life(0, redrives=1)), COMMITTED, POLICY, WALL) == Commit(life(0, redrives=1))


def test_a_postponed_record_comes_again_in_the_lane_and_all_others_go_on() -> None:
    """Given one record of many that is postponed, then the pace is as before, and nothing is written for it."""
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets((0, 1))
    rig.answer(Postponed(5_000))
    rig.answer()
    rig.run(4_999)
    assert not rig.sent
    rig.run(1)
    assert (rig.out_offsets(), rig.sent[0].record.times, rig.sent[0].record.postponed_at_ms > 0) == ([0], 0, True)
    rig.answer()
    assert all(not batch.entries for batch in rig.settle())
    assert rig.part().tracker.snapshot() == Progress(2)
