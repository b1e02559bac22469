"""What follows from each outcome, case by case of the contract, and that waiting is never short and always ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.decide import LEAVE_UNCOMMITTED, Decision, dead_letter_unreadable, decide
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    LABELS,
    OUTCOME_NAMES,
    Failed,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
    label_of,
)
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.levels import LONGEST, TABLE, longest_fit
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import AT_ONCE, Commit, DeadLetter, Hop, Retry, Wait, after_wait
from tests.sim.samples import WALL, life, policy, record

HTTP = Failed("http-500", "boom")


def test_a_record_of_a_main_topic_begins_its_life_with_nothing_counted() -> None:
    expected = RetryState("orders:0:7", "orders", 0, 0, 0, WALL - 9, 0, "")
    assert retry_state_of(record(7, timestamp=WALL - 9)) == expected


def fresh(outcome: Outcome, **more: int) -> Decision:
    return decide(record(7), outcome, policy(**more), WALL)  # type: ignore[arg-type]


def retried(times: int, outcome: Outcome, **more: int) -> Decision:
    return decide(record(life=life(times, redrives=2)), outcome, policy(**more), WALL)  # type: ignore[arg-type]


def test_a_success_at_once_says_nothing() -> None:
    assert fresh(COMMITTED) == Commit(None)


def test_a_success_after_retries_says_so_with_its_life() -> None:
    assert retried(3, COMMITTED) == Commit(life(3, redrives=2))


def test_a_first_failure_begins_a_life() -> None:
    decision = fresh(HTTP)
    assert isinstance(decision, Retry)
    assert decision.level == 10_000
    born = decision.retry_state
    assert (born.id, born.topic, born.times, born.redrives) == ("orders:0:7", "orders", 1, 0)
    assert (born.due_at, born.timestamp, born.first_failed_at) == (WALL + 10_000, WALL, WALL)
    assert born.reason == "http-500: boom"


def test_a_later_failure_keeps_who_it_is_and_when_it_first_failed() -> None:
    decision = retried(1, HTTP)
    assert isinstance(decision, Retry)
    grown, before = decision.retry_state, life(1, redrives=2)
    assert (grown.times, grown.due_at) == (2, WALL + 30_000)
    assert (grown.id, grown.timestamp, grown.redrives) == (before.id, before.timestamp, before.redrives)
    assert grown.first_failed_at == before.first_failed_at


@pytest.mark.parametrize("most", [0, 1, 3, 16])
def test_retries_are_counted_not_deliveries(most: int) -> None:
    found, deliveries = record(7), 0
    while True:
        deliveries += 1
        decision = decide(found, HTTP, policy(retries=most), WALL)
        if not isinstance(decision, Retry):
            break
        found = record(life=decision.retry_state)
    assert isinstance(decision, DeadLetter)
    assert (deliveries, decision.deliveries, decision.retry_state.times) == (most + 1, most + 1, most)
    assert decision.retry_state.due_at == WALL  # no delay on the way to the DLQ


def test_past_the_end_of_the_ladder_every_retry_waits_the_last_delay() -> None:
    decision = retried(40, HTTP, retries=100)
    assert isinstance(decision, Retry)
    assert (decision.retry_state.times, decision.level) == (41, 7_200_000)


@pytest.mark.parametrize(("level", "wait"), [(0, 10_000), (1, 1_000), (18, 7_200_000), (19, 10_000), (-2, 10_000)])
def test_a_level_asked_for_is_the_level_of_the_table(level: int, wait: int) -> None:
    decision = fresh(Failed("retry-asked", level=level))
    assert isinstance(decision, Retry)
    assert (decision.retry_state.due_at - WALL, decision.level) == (wait, wait)


def test_level_minus_one_is_the_dlq_at_once() -> None:
    decision = fresh(Failed("retry-asked", level=-1))
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.deliveries) == (0, 1)


@pytest.mark.parametrize(
    ("delay", "wait"),
    [(999, 10_000), (1_000, 1_000), (864_000_000, 864_000_000), (864_000_001, 10_000), (0, 10_000), (-1, 10_000)],
)
def test_a_delay_of_a_second_to_ten_days_is_granted_else_the_ladder(delay: int, wait: int) -> None:
    decision = fresh(Failed("retry-asked", delay=delay))
    assert isinstance(decision, Retry)
    assert decision.retry_state.due_at == WALL + wait


def test_a_delay_asked_for_after_the_last_retry_does_not_save_it_from_the_dlq() -> None:
    assert isinstance(retried(16, Failed("retry-asked", delay=1_000)), DeadLetter)


def test_a_refusal_goes_to_the_dlq_with_the_retries_made() -> None:
    decision = retried(5, Rejected("refused", "not mine"))
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.deliveries, decision.reason) == (5, 6, "refused")
    assert decision.retry_state.reason == "refused: not mine"


@pytest.mark.parametrize("times", [0, 16])
def test_what_is_no_attempt_spends_nothing(times: int) -> None:
    assert retried(times, Throttled(1_234)) == Wait(1_234)
    assert retried(times, NotSent("refused")) == AT_ONCE
    assert retried(times, CANCELLED) == LEAVE_UNCOMMITTED


@given(
    st.integers(0, 20),
    st.none() | st.integers(-10, 2 * LONGEST),
    st.none() | st.integers(-3, 25),
    st.integers(0, 2**50),
)
def test_no_retry_is_due_before_its_wait_is_over(times: int, delay: int | None, level: int | None, now: int) -> None:
    found = policy()
    decision = decide(record(life=life(times)), Failed("x", delay=delay, level=level), found, now)
    if isinstance(decision, Retry):
        wait = decision.retry_state.due_at - now
        assert decision.retry_state.times == times + 1 <= 16
        assert wait == found.wait_of(times + 1, delay, level) >= 1_000
        assert decision.level is not None
        assert decision.level <= wait + 1_000, "as `longest_fit` says"
    else:
        assert isinstance(decision, DeadLetter)
        assert level == -1 or times >= 16


def test_a_broken_record_is_condemned_under_its_own_place() -> None:
    decision = dead_letter_unreadable(
        record(9, headers=[("RECONSUMETIMES", b"-1")], fault="bad-header: no number"), policy(), WALL
    )
    assert (decision.retry_state.id, decision.retry_state.topic, decision.retry_state.times) == (
        "orders:0:9",
        "orders",
        0,
    )
    assert (decision.reason, decision.deliveries) == ("bad-header", 0)


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_record_of_a_main_topic_and_one_that_is_due_go_at_once() -> None:
    assert after_wait(record(), policy(), WALL) == AT_ONCE
    assert after_wait(record(life=life(due_at=WALL)), policy(), WALL) == AT_ONCE
    assert after_wait(record(life=life(due_at=0)), policy(), WALL) == AT_ONCE


def test_a_rest_below_every_level_is_waited_in_memory() -> None:
    assert after_wait(record(life=life(due_at=WALL + 899)), policy(), WALL) == Wait(899)


def test_a_hop_changes_nothing_and_is_not_counted() -> None:
    before = life(4, due_at=WALL + 61_000)
    assert after_wait(record(life=before), policy(), WALL) == Hop(before, 60_000)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, ...]:
    delays = st.integers(1_000, 50_000) | st.integers(1_000, LONGEST)
    return tuple(sorted(draw(st.sets(delays, min_size=1, max_size=12))))


@settings(deadline=None)
@given(st.just(TABLE) | tables(), st.integers(0, LONGEST), st.lists(st.integers(0, 900), min_size=1, max_size=30))
def test_hops_are_never_early_and_always_end(table: tuple[int, ...], delay: int, lags: list[int]) -> None:
    found = policy(ladder=table[-1:], table=table)
    delay = min(delay, 1_000 * table[0])  # more hops than that only take the test's time
    waiting, now, most = record(life=life(due_at=WALL + delay)), WALL, 0
    for most in range(2_000):
        step = after_wait(waiting, found, now)
        if step == AT_ONCE:
            break
        if isinstance(step, Hop):
            assert step.level == longest_fit(WALL + delay - now, table)
            now += step.level + lags[most % len(lags)] // 100  # a copy takes a moment to be written
        else:
            assert isinstance(step, Wait)
            assert 0 < step.ms < table[0]
            now += step.ms
    assert now >= WALL + delay
    assert most <= delay // table[0] + 1


def test_every_outcome_has_a_name_in_the_metrics() -> None:
    outcomes: list[Outcome] = [COMMITTED, HTTP, Rejected("x"), Throttled(1), Postponed(1), NotSent("x"), CANCELLED]
    outcomes.append(Failed("timeout", label="timeout"))
    assert {label_of(outcome) for outcome in outcomes} | {"broken_answer"} == set(OUTCOME_NAMES)
    assert set(LABELS.values()) < set(OUTCOME_NAMES)
