"""The audit's rules about resets, on made-up facts: what a reset undoes is no violation, and what it forbids is one."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Breach, Fact
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.names import Names
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import BY_RESET, PartitionResets, ResetRange, Resets
from tests.unit.audit.lives import BEGIN, DONE, ONCE, TERMS, copy, dead, kinds, told, waits

RESET_AT = BEGIN + 3_000
ORDERS = Partition("orders", 0)
FIRST = ResetRange(5, 50, 1, RESET_AT)
RESETS: Resets = {ORDERS: PartitionResets("5e6f7a8b", 1, (FIRST,), ("r1",))}
UNDONE = {**DONE, ("orders", 0): Progress(5, cycle=1)}
"""The record of the facts is to be delivered again."""
TERMS_RESET = replace(TERMS, after=UNDONE, resets=RESETS)
LATE = 3_000 + TERMS.in_flight + TERMS.slack + 1


def by_reset(at: int, times: int = 1) -> Fact:
    return replace(told("COMMIT", times, at), reason=BY_RESET)


def in_cycle(cycle: int, *facts: Fact) -> list[Fact]:
    return [replace(fact, cycle=cycle) for fact in facts]


def test_a_record_that_is_delivered_again_is_not_torn() -> None:
    assert kinds(ONCE, replace(TERMS, after=UNDONE)) == [Breach.TORN], "without a reset it is"
    assert kinds(ONCE, TERMS_RESET) == []
    assert kinds([dead(0), replace(told("DLQ", 0, 5_000, due=5_000))], TERMS_RESET) == []


def test_its_next_life_has_counts_of_its_own() -> None:
    assert (
        kinds(
            [*ONCE, *in_cycle(1, *ONCE)],
            replace(TERMS, after={**DONE, ("orders", 0): Progress(9, cycle=1)}, resets=RESETS),
        )
        == []
    )


def test_a_superseded_copy_ends_by_the_reset_at_any_time() -> None:
    for at in (500, LATE):
        assert kinds([copy(), waits(), by_reset(at)], TERMS_RESET) == []


def test_a_superseded_copy_that_ends_without_a_trace_is_lost() -> None:
    assert kinds([copy(), waits()], TERMS_RESET) == [Breach.LOST]


def test_one_in_a_queue_ends_with_the_move_of_its_partition() -> None:
    queue = Names("billing").ordered("orders")
    delays = {**TERMS.delays, queue: 0}
    done = {**UNDONE, (queue, 0): Progress(100)}
    facts = [copy(topic=queue), told("WAITING_RETRY")]
    with_queue = replace(TERMS_RESET, delays=delays, before=done, after=done)
    assert kinds(facts, replace(with_queue, resets={})) == [Breach.LOST, Breach.TORN]
    assert kinds(facts, with_queue) == []


def test_a_delivery_long_after_the_reset_in_the_cycle_before_is_named() -> None:
    assert kinds([copy(), waits(), told("COMMIT", at=LATE)], TERMS_RESET) == [Breach.SUPERSEDED]
    assert kinds([copy(), waits(), dead(1, LATE), told("DLQ", 1, LATE, due=LATE)], TERMS_RESET) == [Breach.SUPERSEDED]
    assert kinds([copy(), waits(), told("COMMIT", at=LATE - 1)], TERMS_RESET) == [], "it may have been in flight"


def test_a_record_outside_every_range_is_judged_as_ever() -> None:
    elsewhere: Resets = {ORDERS: PartitionResets("5e6f7a8b", 1, (ResetRange(8, 50, 1, RESET_AT),), ("r1",))}
    assert kinds(ONCE, replace(TERMS, after=UNDONE, resets=elsewhere)) == [Breach.TORN]


def test_a_cycle_that_no_reset_has_begun_is_named() -> None:
    done = {**DONE, ("orders", 0): Progress(100, cycle=1)}
    terms = replace(TERMS, after=done, resets=RESETS)
    assert kinds(in_cycle(1, *ONCE), terms) == []
    assert kinds(in_cycle(2, *ONCE), terms) == [Breach.UNKNOWN_CYCLE]
    assert kinds(in_cycle(1, *ONCE), replace(terms, resets={})) == [], "the policy topic was recreated"
