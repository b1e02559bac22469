"""What a dead letter says of its record, to the last field, for each way to die."""

from __future__ import annotations

from reconsume.sidecar.core.decide import dead_letter_crashing, dead_letter_unreadable, decide
from reconsume.sidecar.core.outcome import EXPIRED, Failed, Outcome, Rejected, released
from reconsume.sidecar.core.record import Record
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import DeadLetter, Hop, Wait, after_wait
from tests.sim.samples import WALL, life, policy, record

LATER = WALL + 60_000
"""When it dies."""
OLD = record(7, life=life(3, redrives=2))


def dead(outcome: Outcome, of: Record = OLD) -> DeadLetter:
    decision = decide(of, outcome, policy(retries=3), LATER)
    assert isinstance(decision, DeadLetter)
    return decision


def last(reason: str, times: int = 3) -> RetryState:
    """The last state of a record whose life had begun."""
    return life(times, due_at=LATER, redrives=2, reason=reason, last_failed_at=LATER)


def test_a_last_failure_is_told_with_its_text() -> None:
    assert dead(Failed("http-503", "busy")) == DeadLetter(last("http-503: busy"), "http-503", 4)
    assert dead(Rejected("bad-sku", "A-17")) == DeadLetter(last("bad-sku: A-17"), "bad-sku", 4)


def test_the_end_of_a_lease_has_a_reason_and_no_text() -> None:
    assert dead(EXPIRED) == DeadLetter(last("lease-expired"), "lease-expired", 4)
    assert dead(released(1_000)) == DeadLetter(last("released"), "released", 4)


def test_a_record_that_crashed_its_pods_says_how_often() -> None:
    reason = "crashed-service: it was with the service at 3 deaths of it, and alone at the last one"
    assert dead_letter_crashing(OLD, 3, policy(), LATER) == DeadLetter(last(reason), "crashed-service", 4)


def test_a_record_that_dies_at_its_first_failure_has_failed_then() -> None:
    found = dead(Rejected("bad-sku", "A-17"), record(7, timestamp=WALL - 9))
    born = RetryState("orders:0:7", "orders", 0, 0, LATER, WALL - 9, LATER, "bad-sku: A-17", last_failed_at=LATER)
    assert found == DeadLetter(born, "bad-sku", 1)


def test_of_a_record_with_broken_headers_only_its_place_and_times_are_told() -> None:
    broken = record(9, timestamp=WALL - 9, headers=[("RECONSUMETIMES", b"-1")], fault="bad-header: no number")
    reason = "bad-header: no number"
    born = RetryState("orders:0:9", "orders", 0, 0, LATER, WALL - 9, LATER, reason, last_failed_at=LATER)
    assert dead_letter_unreadable(broken, policy(), LATER) == DeadLetter(born, "bad-header", 0)


def test_a_record_that_nobody_takes_dies_astray_with_its_counts() -> None:
    rules = policy(topics=("invoices",))
    late = OLD.retry_state.due_at + rules.unknown_topic if OLD.retry_state else 0
    passed = after_wait(OLD, rules, late - 1)
    assert isinstance(passed, Hop)
    assert passed.stray
    kept = life(3, due_at=late, redrives=2, reason="unknown-topic: http-500: no")
    assert after_wait(OLD, rules, late) == DeadLetter(kept, "unknown-topic", 3, stray=True)


def test_a_wait_of_the_last_millisecond_is_waited() -> None:
    assert after_wait(record(life=life(due_at=WALL + 1)), policy(), WALL) == Wait(1)
