"""What follows from an outcome: decided from record, outcome, policy and clock alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.decide import (
    LEAVE_UNCOMMITTED,
    Decision,
    NackWait,
    Postpone,
    RetryInPlace,
    dead_letter_unreadable,
    decide,
    nack_wait,
)
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    EXPIRED,
    LABELS,
    NACKED,
    OUTCOME_NAMES,
    Died,
    Failed,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
    label_of,
    released,
)
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.expiry import Expiry
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.levels import LONGEST, TABLE, build_ladder, longest_fit
from reconsume.topics.retry_headers import RETRY_POSTPONED_AT, RetryState, parse_retry_headers
from reconsume.topics.retry_rules import RetryRule
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import AT_ONCE, DONE, Commit, DeadLetter, Hop, Retry, Wait, after_wait
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record

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


@pytest.mark.parametrize(("level", "wait"), [(0, 10_000), (1, 1_000), (18, 7_200_000), (19, 7_200_000), (-2, 10_000)])
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
    outcomes += [Failed("timeout", label="timeout"), Died()]
    assert {label_of(outcome) for outcome in outcomes} | {"broken_answer"} == set(OUTCOME_NAMES)
    assert set(LABELS.values()) < set(OUTCOME_NAMES)


# --- A failure that is retried in place (contract 5.2): when it comes again, and what ends it ------------------------


NO = Failed("http-500", "no stock")
IN_PLACE_TABLE = (1_000, 5_000, 60_000)


def in_place(max_times: int | None = None, rules: tuple[RetryRule, ...] = (), **more: object) -> Policy:
    """A group that retries in place every 700 ms."""
    plain = policy(ladder=(1_000,), table=IN_PLACE_TABLE)
    return replace(plain, in_place=InPlace(700, max_times), retry_rules=rules, **more)


def rule(reason: str, *, topics: tuple[str, ...] = (), **more: object) -> RetryRule:
    return RetryRule("r", topics, (reason,), build_ladder((1_000,)), **{"max_reconsume_times": 16, **more})  # type: ignore[arg-type]


def dead(decision: Decision) -> tuple[str, str, int]:
    """Reason, text and count of a dead letter."""
    assert isinstance(decision, DeadLetter)
    return decision.reason, decision.retry_state.reason, decision.retry_state.times


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (NO, 700),
        (replace(NO, delay=2_500), 2_500),
        (replace(NO, delay=9), 10),
        (replace(NO, delay=30_001), 30_000),
        (replace(NO, level=2), 5_000),
        (replace(NO, level=3), 30_000),
        (replace(NO, level=0), 700),
        (replace(NO, level=99), 30_000),
        (replace(NO, delay=2_500, level=2), 2_500),
    ],
)
def test_it_comes_again_after_the_interval_or_as_the_service_asks_within_the_bounds(asked: Failed, wait: int) -> None:
    assert decide(record(), asked, in_place(), WALL) == RetryInPlace(wait)


@pytest.mark.parametrize("max_times", [0, 1, 3])
def test_it_is_a_dead_letter_after_as_many_retries_as_may_be(max_times: int) -> None:
    for again in range(max_times):
        assert isinstance(decide(replace(record(), again=again), NO, in_place(max_times), WALL), RetryInPlace)
    last = decide(replace(record(), again=max_times), NO, in_place(max_times), WALL)
    assert dead(last) == ("http-500", "http-500: no stock", max_times)


def test_without_a_bound_it_comes_again_for_ever() -> None:
    assert isinstance(decide(replace(record(), again=10**6), NO, in_place(), WALL), RetryInPlace)


@pytest.mark.parametrize("rules", [(), (rule("http-*", dead_letter=True),)])
def test_a_service_or_a_rule_sends_it_to_the_dlq_at_once(rules: tuple[RetryRule, ...]) -> None:
    asked = NO if rules else replace(NO, level=-1)
    assert dead(decide(record(), asked, in_place(rules=rules), WALL)) == ("http-500", "http-500: no stock", 0)


@pytest.mark.parametrize("other", [rule("timeout", dead_letter=True), rule("*", topics=("bills",), dead_letter=True)])
def test_a_rule_for_other_failures_or_topics_changes_nothing(other: RetryRule) -> None:
    assert decide(record(), NO, in_place(rules=(other,)), WALL) == RetryInPlace(700)


def test_the_rules_of_a_retry_are_those_of_its_main_topic() -> None:
    ready = record(life=life(1))
    for topic, ends in (("orders", True), ("billing-RETRY", False)):
        mine = in_place(rules=(rule("*", topics=(topic,), dead_letter=True),))
        assert isinstance(decide(ready, NO, mine, WALL), DeadLetter) is ends


@pytest.mark.parametrize(("after", "ends"), [(699, True), (700, False)])
def test_it_is_a_dead_letter_if_its_next_attempt_would_come_too_late(after: int, ends: bool) -> None:
    old = in_place(max_age=3_000 + after)
    for policy_of, failure in ((in_place(), replace(NO, expires=Expiry(after=after))), (old, NO)):
        decision = decide(record(timestamp=WALL - 3_000), failure, policy_of, WALL)
        if ends:
            assert dead(decision)[:2] == ("expired", "expired: http-500: no stock")
            assert isinstance(decision, DeadLetter)
            assert decision.retry_state.due_at == WALL, "when it ended"
        else:
            assert decision == RetryInPlace(700)


def test_what_was_tried_in_place_is_no_retry_of_the_ladder_that_begins() -> None:
    queued = policy(ladder=(1_000,), queued=True, retries=3)
    decision = decide(replace(record(), again=7), NO, queued, WALL)
    assert isinstance(decision, Retry)
    assert decision.retry_state.times == 1


# --- neither order nor broadcast keeps a copy ------------------------------------------------------------------------


BROADCAST = replace(policy(retries=0), broadcast=True)


@pytest.mark.parametrize("outcome", [NO, EXPIRED])
def test_in_broadcast_a_failure_ends_a_record(outcome: Failed) -> None:
    assert decide(record(), outcome, BROADCAST, WALL) == DONE


@pytest.mark.parametrize("special", [in_place(), policy(ladder=(1_000,), queued=True)])
def test_an_ordered_record_that_is_postponed_waits_in_memory(special: Policy) -> None:
    assert decide(record(), Postponed(900_000), special, WALL) == Postpone(900_000)


def waits(decision: Decision) -> Decision | type:
    return decision if isinstance(decision, Commit | Postpone | RetryInPlace) else type(decision)


@pytest.mark.parametrize(
    ("group", "then"), [(in_place(), RetryInPlace(700)), (policy(), Retry), (BROADCAST, Commit(None))]
)
def test_a_postponement_beyond_the_limit_is_a_failure_as_each_group_has_them(group: Policy, then: object) -> None:
    late = record().postponed(WALL - group.postpone_limit)
    assert waits(decide(late, Postponed(5_000), group, WALL)) == then
    assert waits(decide(late, Postponed(5_000), group, WALL - 1)) == Postpone(5_000)


def test_a_nack_and_an_expired_lease_follow_the_rules_for_their_reasons() -> None:
    ends = replace(policy(), retry_rules=(rule("nacked", dead_letter=True), rule("lease-expired", dead_letter=True)))
    assert dead(decide(record(), NACKED, ends, WALL))[0] == "nacked"
    assert dead(decide(record(), EXPIRED, ends, WALL))[0] == "lease-expired"
    more = replace(policy(retries=0), retry_rules=(rule("nacked", topics=("orders",)),))
    assert isinstance(decide(record(), NACKED, more, WALL), NackWait)


# --- A postponed record comes again uncounted, from memory or from a level topic that says since when ----------------


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
    assert rig.part().offsets.snapshot() == Progress(2)


# --- what follows from the ends of leases: an expiry is a failure without a delay, a nack is counted in --------------


def test_an_expired_lease_is_a_failure_that_is_due_at_once_on_the_ready_topic() -> None:
    decision = decide(record(), EXPIRED, policy(), WALL)
    assert isinstance(decision, Retry)
    assert (decision.level, decision.retry_state.times, decision.retry_state.due_at) == (None, 1, WALL)
    assert decision.retry_state.reason == "lease-expired"


def test_the_expiry_after_the_last_retry_goes_to_the_dlq() -> None:
    assert isinstance(decide(record(life=life(2)), EXPIRED, policy(retries=3), WALL), Retry)
    decision = decide(record(life=life(3)), EXPIRED, policy(retries=3), WALL)
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.reason, decision.deliveries) == (3, "lease-expired", 4)


def test_a_nack_is_no_retry_for_what_comes_after_it() -> None:
    decision = decide(replace(record(life=life(1)), nacks=2), EXPIRED, policy(), WALL)
    assert isinstance(decision, Retry)
    assert decision.retry_state.times == 2


def test_a_nack_writes_nothing_until_its_own_limit() -> None:
    assert isinstance(decide(replace(record(life=life(2)), nacks=1_000), NACKED, policy(retries=2), WALL), NackWait)
    limited = replace(policy(retries=2), nack_max_times=2)
    assert isinstance(decide(replace(record(), nacks=1), NACKED, limited, WALL), NackWait)
    decision = decide(replace(record(life=life(1)), nacks=2), NACKED, limited, WALL)
    assert isinstance(decision, DeadLetter)
    assert (decision.retry_state.times, decision.reason, decision.retry_state.reason) == (1, "nacked", "nacked")


def test_a_released_record_is_due_when_its_lease_would_have_ended() -> None:
    decision = decide(record(), released(7_500), policy(), WALL)
    assert isinstance(decision, Retry)
    state = decision.retry_state
    assert (state.times, state.due_at, state.reason) == (1, WALL + 7_500, "released")
    assert isinstance(decide(record(life=life(3)), released(7_500), policy(retries=3), WALL), DeadLetter)


@pytest.mark.parametrize(("now", "wait"), [(0, 60_000), (1, 79_999), (19_999, 60_001), (20_000, 60_000)])
def test_a_nacked_record_comes_back_at_the_next_look(now: int, wait: int) -> None:
    assert nack_wait(60_000, now) == wait


@given(st.integers(1, 10**9), st.integers(0, 2**45))
def test_a_nacked_record_never_comes_early_nor_more_than_a_third_late(delay: int, now: int) -> None:
    assert delay <= nack_wait(delay, now) < delay + max(1, delay // 3)
