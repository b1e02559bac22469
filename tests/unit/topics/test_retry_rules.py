"""The rule that applies to a failure: the first that matches; what it leaves out is the group's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import RetryInPlace, decide
from reconsume.sidecar.core.outcome import EXPIRED as LEASE_EXPIRED
from reconsume.sidecar.core.outcome import NACKED, Failed
from reconsume.sidecar.core.policy import InPlace
from reconsume.topics.levels import Ladder
from reconsume.topics.retry_rules import RetryRule
from reconsume.topics.transitions import DeadLetter, Retry, after_failure
from tests.sim.samples import WALL, life, policy, record

LADDER = Ladder((60_000, 300_000))
BUSY = RetryRule("busy", (), ("http-409", "http-5*"), LADDER, 2)
GONE = RetryRule("gone", ("inv*", "orders"), ("http-410",), LADDER, 16, dead_letter=True)
SLOW = RetryRule("slow", ("orders",), (), Ladder((7_200_000,)), 16)
RULES = replace(policy(), retry_rules=(BUSY, GONE, SLOW))

TABLE = [
    ("orders", "http-409", "busy"),
    ("orders", "http-503", "busy"),
    ("invoices", "http-599", "busy"),
    ("invoices", "http-410", "gone"),
    ("orders", "http-410", "gone"),
    ("parcels", "http-410", None),
    ("orders", "timeout", "slow"),
    ("orders2", "timeout", None),
    ("invoices", "HTTP-409", None),
    ("invoices", "", None),
]


@pytest.mark.parametrize(("topic", "reason", "rule"), TABLE)
def test_the_first_rule_that_names_topic_and_reason_applies_and_else_the_groups_values(
    topic: str, reason: str, rule: str | None
) -> None:
    terms = RULES.terms_of(topic, reason)
    assert (terms is RULES) if rule is None else (isinstance(terms, RetryRule) and terms.name == rule)


def test_a_rules_ladder_and_retries_count_for_what_fails_by_it_alone() -> None:
    first = after_failure(record(), Failed("http-409"), RULES, WALL)
    assert isinstance(first, Retry)
    assert (first.level, first.retry_state.due_at) == (60_000, WALL + 60_000)
    third = record(life=life(2))
    assert isinstance(after_failure(third, Failed("http-409"), RULES, WALL), DeadLetter)
    other = after_failure(third, Failed("timeout"), RULES, WALL)
    assert isinstance(other, Retry)
    assert other.level == 7_200_000


def test_a_delay_that_the_service_asks_for_goes_before_a_rules_ladder_but_not_before_its_end() -> None:
    asked = after_failure(record(), Failed("http-409", delay=30_000), RULES, WALL)
    assert isinstance(asked, Retry)
    assert asked.level == 30_000
    dead = after_failure(record(), Failed("http-410", delay=30_000), RULES, WALL)
    assert isinstance(dead, DeadLetter)
    assert (dead.reason, dead.retry_state.times, dead.deliveries) == ("http-410", 0, 1)


def test_a_copy_is_judged_by_its_main_topic_and_not_by_the_topic_that_it_waited_in() -> None:
    waited = record(life=replace(life(1), topic="parcels", id="parcels:0:7"))
    assert RULES.terms_of(waited.retry_state.topic, "http-410") is RULES  # type: ignore[union-attr]
    assert isinstance(after_failure(waited, Failed("http-410"), RULES, WALL), Retry)


@pytest.mark.parametrize(("reason", "outcome"), [("lease-expired", LEASE_EXPIRED), ("nacked", NACKED)])
def test_leases_that_expire_and_records_that_are_nacked_have_rules_as_well(reason: str, outcome: object) -> None:
    last = replace(policy(), retry_rules=(RetryRule("once", (), (reason,), LADDER, 0, dead_letter=True),))
    dead = decide(record(), outcome, last, WALL)  # type: ignore[arg-type]
    assert isinstance(dead, DeadLetter)
    assert dead.reason == reason


def test_in_place_a_rule_can_end_a_record_and_its_age_too() -> None:
    ordered = replace(RULES, in_place=InPlace())
    assert isinstance(decide(record(), Failed("http-410"), ordered, WALL), DeadLetter)
    assert isinstance(decide(record(), Failed("http-409"), ordered, WALL), RetryInPlace)
    aged = replace(ordered, max_age=10_000)
    assert isinstance(decide(record(timestamp=WALL - 9_000), Failed("timeout"), aged, WALL), RetryInPlace)
    old = replace(ordered, retry_rules=(), max_age=10_000)
    dead = decide(record(timestamp=WALL - 9_001), Failed("timeout", "no answer"), old, WALL)
    assert isinstance(dead, DeadLetter)
    assert (dead.reason, dead.retry_state.reason) == ("expired", "expired: timeout: no answer")
