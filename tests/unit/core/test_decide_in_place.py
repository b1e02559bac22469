"""A failure that is retried in place (contract 5.2): when it comes again, and what ends it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import Decision, Postpone, RetryInPlace, decide
from reconsume.sidecar.core.outcome import EXPIRED, NACKED, Failed, Postponed
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.topics.expiry import Expiry
from reconsume.topics.levels import build_ladder
from reconsume.topics.retry_rules import RetryRule
from reconsume.topics.transitions import DONE, Commit, DeadLetter, Retry
from tests.sim.samples import WALL, life, policy, record

NO = Failed("http-500", "no stock")
TABLE = (1_000, 5_000, 60_000)


def in_place(max_times: int | None = None, rules: tuple[RetryRule, ...] = (), **more: object) -> Policy:
    """A group that retries in place every 700 ms."""
    plain = policy(ladder=(1_000,), table=TABLE)
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
        (replace(NO, level=99), 700),
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


def test_in_broadcast_a_nack_beyond_the_most_ends_a_record() -> None:
    assert isinstance(decide(record(), NACKED, replace(BROADCAST, max_reconsume_times=1), WALL), RetryInPlace)
    assert decide(record(), NACKED, BROADCAST, WALL) == DONE


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
    assert isinstance(decide(record(), NACKED, more, WALL), RetryInPlace)
