"""The audit's rules on made-up facts: what each mode allows, what deletion excuses, what clocks excuse."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Breach, Fact, FactKind, Known, Terms
from reconsume.sidecar.audit.rules import judge
from reconsume.sidecar.core.progress import Progress
from tests.unit.audit.lives import (
    BEGIN,
    DLQ,
    DONE,
    EVENTS,
    ONCE,
    READY,
    RELAY,
    SECOND,
    TERMS,
    copy,
    dead,
    kinds,
    told,
    waits,
)


def test_a_retry_that_worked_breaks_nothing() -> None:
    assert kinds(ONCE) == []


def test_a_copy_that_is_not_done_may_wait() -> None:
    terms = replace(TERMS, before={**DONE, (SECOND, 0): Progress(0)}, after={**DONE, (SECOND, 0): Progress(0)})
    assert kinds(ONCE[:2], terms) == []
    assert kinds(ONCE[:2]) == [Breach.LOST]


def test_a_copy_that_the_bitmap_says_is_done_is_lost_without_a_successor() -> None:
    above = {**DONE, (SECOND, 0): Progress(0, frozenset({0}))}
    assert kinds(ONCE[:2], replace(TERMS, before=above, after=above)) == [Breach.LOST]


def test_what_came_while_the_audit_read_is_not_judged_by_what_is_absent() -> None:
    assert kinds([replace(copy(), later=True)]) == []
    assert kinds([replace(waits(), later=True)]) == []


def test_what_follows_from_a_source_that_is_not_done_is_torn() -> None:
    assert kinds(ONCE, replace(TERMS, after={**DONE, ("orders", 0): Progress(7)})) == [Breach.TORN]
    assert kinds(ONCE, replace(TERMS, after={**DONE, (SECOND, 0): Progress(0)})) == [Breach.TORN]


def test_without_committed_progress_nothing_is_called_torn_or_lost() -> None:
    assert kinds(ONCE[:2], replace(TERMS, before={}, after={})) == []


# --- ways through levels ---------------------------------------------------------------------------------------------


def hop(at: int) -> tuple[Fact, ...]:
    first = copy(topic="billing-RETRY-2s", due=3_200)
    told_first = told("WAITING_RETRY", level="2s", due=3_200)
    return first, copy(at=at, due=3_200), told_first, told("COMMIT", at=4_000)


def test_a_hop_is_no_second_count() -> None:
    assert kinds(hop(2_050)) == []


@pytest.mark.parametrize(("at", "found"), [(1_499, [Breach.EARLY]), (1_501, [])])
def test_a_hop_before_its_level_is_over_is_early_beyond_the_slack_of_clocks(at: int, found: list[Breach]) -> None:
    assert kinds(hop(at)) == found


def test_a_second_copy_in_the_same_topic_at_once_is_counted_twice() -> None:
    assert kinds((*ONCE, copy(at=3, offset=1))) == [Breach.TWICE]


def test_a_second_copy_that_is_due_at_another_time_is_counted_twice() -> None:
    assert kinds((*ONCE, copy(at=1_600, due=2_600, offset=1))) == [Breach.TWICE]


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (copy(at=1_000, due=9_000, topic="billing-RETRY-2s"), []),
        (copy(at=1_000, due=2_000), []),
        (copy(at=1_000, due=999, topic="billing-RETRY-2s"), [Breach.TWICE]),
        (copy(at=100, due=2_000), [Breach.TWICE]),
    ],
    ids=["in another level", "in the same level", "due before", "before it was delivered"],
)
def test_a_retry_that_its_service_postponed_is_counted_once(after: Fact, found: list[Breach]) -> None:
    facts = (copy(), waits(), replace(after, postponed=True), told("COMMIT", at=9_500))
    assert kinds(facts) == found


@pytest.mark.parametrize("after", [told("COMMIT", at=400), waits(2, 400), dead(1, 400)], ids=["commit", "retry", "dlq"])
def test_what_follows_a_copy_before_its_due_time_is_early(after: Fact) -> None:
    assert Breach.EARLY in kinds((copy(), waits(), after))


# --- counts ----------------------------------------------------------------------------------------------------------

JUMPED = (copy(), waits(), copy(3, 1_500, due=2_500, offset=1), waits(3, 1_500), told("COMMIT", 3, 3_000))


def test_counts_rise_by_one_but_where_memory_counts() -> None:
    assert kinds(JUMPED) == [Breach.GAP]
    assert kinds(JUMPED, replace(TERMS, in_memory=True)) == []


def test_the_dlq_has_the_retries_that_were_made_or_more_where_memory_counts() -> None:
    made = (dead(5), told("DLQ", 5, 5_000, due=5_000))
    assert kinds(made) == [Breach.GAP]
    assert kinds(made, replace(TERMS, in_memory=True)) == []
    fewer = (*ONCE[:2], dead(0), told("DLQ", 0, 5_000, due=5_000))
    assert Breach.GAP in kinds(fewer, replace(TERMS, in_memory=True))


def test_counts_of_another_system_are_gone_on_from() -> None:
    later = (copy(4), waits(4), told("COMMIT", 4, 1_500))
    assert kinds(later) == [Breach.GAP]
    assert kinds(later, replace(TERMS, foreign=True)) == []


def test_a_record_of_a_later_cycle_begins_with_its_main_record_again() -> None:
    first = (copy(), waits(), dead(1), told("DLQ", 1, 5_000, due=5_000))
    again = [replace(fact, cycle=1) for fact in ONCE]
    reset_once = replace(TERMS, after={**DONE, ("orders", 0): Progress(100, cycle=1)})
    assert kinds((*first, *again), reset_once) == []
    assert kinds((*first, *(replace(fact, cycle=0) for fact in again))) != []


def test_a_redriven_record_begins_at_0_on_the_ready_topic() -> None:
    first = (dead(0), told("DLQ", 0, 5_000, due=5_000))
    again = copy(0, 6_000, READY, 6_000, redrives=1), told("REDRIVEN", 0, 6_000, due=6_000, redrives=1)
    done = told("COMMIT", 0, 6_100, due=6_000, redrives=1)
    assert kinds((*first, *again, done)) == []
    assert kinds((*first, again[1], done)) == [Breach.NO_COPY]
    assert kinds((*first, again[0], done)) == [Breach.NO_EVENT]


def test_an_edited_redrive_is_held_against_itself_and_not_against_the_first_record() -> None:
    main = replace(copy(0, topic="orders"), what=FactKind.MAIN, due=0)
    edited = replace(copy(0, 6_000, READY, 6_000, redrives=1), digest=b"other", state="edited")
    life = (told("REDRIVEN", 0, 6_000, due=6_000, redrives=1), told("COMMIT", 0, 6_100, due=6_000, redrives=1))
    assert kinds((main, edited, *life)) == []
    assert kinds((main, replace(edited, state=""), *life)) == [Breach.ALTERED]


# --- ends and broken records -----------------------------------------------------------------------------------------

DEAD = (dead(0), told("DLQ", 0, 5_000, due=5_000))


def test_a_dismissal_of_a_dead_letter_breaks_nothing() -> None:
    assert kinds((*DEAD, told("DISMISSED", 0, 9_000, due=5_000))) == []
    assert kinds((*DEAD, *(told("DISMISSED", 0, at, due=5_000) for at in (9_000, 9_500)))) == [], "it may be told twice"


def test_a_life_is_in_the_dlq_once() -> None:
    assert kinds(DEAD) == []
    assert kinds((*DEAD, replace(dead(0), offset=1))) == [Breach.DEAD_TWICE]
    assert kinds((*DEAD, replace(dead(0), offset=1)), RELAY) == [Breach.DEAD_TWICE]


def test_a_retry_is_told_of_once() -> None:
    assert kinds((*ONCE, waits())) == [Breach.TWICE]


def test_a_life_ends_once_and_nothing_comes_after() -> None:
    assert kinds((*ONCE, told("COMMIT", at=1_600))) == [Breach.ENDED_TWICE]
    after = (copy(2, 1_600, due=2_600, offset=1), waits(2, 1_600))
    assert kinds((*ONCE, *after)) == [Breach.LOST, Breach.ENDED_TWICE]


def test_a_record_with_broken_headers_is_named_and_lost_only_when_it_is_done_and_not_in_the_dlq() -> None:
    bad = replace(copy(), what=FactKind.BAD, id=f"{SECOND}:0:0", reason="RECONSUMETIMES is missing")
    buried = [replace(fact, id=bad.id) for fact in DEAD]
    assert kinds((bad,)) == [Breach.BAD_HEADER, Breach.LOST]
    assert kinds((bad, *buried)) == [Breach.BAD_HEADER]
    assert kinds((bad,), replace(TERMS, before={})) == [Breach.BAD_HEADER]
    assert kinds((replace(bad, topic=EVENTS),)) == [Breach.BAD_EVENT]


# --- relay -----------------------------------------------------------------------------------------------------------


def test_what_a_service_of_a_relay_wrote_itself_needs_no_event() -> None:
    forwarded = copy(at=1_001, topic=READY)
    assert kinds((copy(), forwarded), RELAY) == []
    assert kinds((copy(),), RELAY) == [Breach.LOST]


def test_a_forward_before_the_due_time_is_early() -> None:
    assert kinds((copy(due=2_000), copy(at=1_100, topic=READY, due=2_000)), RELAY) == [Breach.EARLY]


def test_a_failure_that_a_service_posted_twice_is_a_note() -> None:
    posts = (copy(), copy(at=5, due=1_005, offset=1), waits(), waits(at=5))
    forwards = (copy(at=1_100, topic=READY), copy(at=1_101, topic=READY, due=1_005, offset=1))
    assert kinds((*posts, *forwards), RELAY) == [Breach.REPEATED]


def test_a_copy_that_was_forwarded_twice_is_counted_twice() -> None:
    forwards = (copy(at=1_100, topic=READY), copy(at=1_101, topic=READY, offset=1))
    assert kinds((copy(), waits(), *forwards), RELAY) == [Breach.TWICE]


# --- a relay before -------------------------------------------------------------------------------------------------

TAKEN_OVER = replace(TERMS, service={(READY, 0): Progress(1)})
"""The service itself has read the first record of the ready topic; then the sidecar went on."""
FORWARDED = (copy(), waits(), copy(at=1_001, topic=READY))


def test_a_copy_that_the_service_itself_took_as_a_relay_is_not_called_lost() -> None:
    assert kinds(FORWARDED, TAKEN_OVER) == []
    assert kinds(FORWARDED) == [Breach.LOST]


def test_a_copy_behind_the_place_where_the_sidecar_took_over_must_have_a_successor() -> None:
    later = (*FORWARDED[:2], copy(at=1_001, topic=READY, offset=1))
    assert kinds(later, TAKEN_OVER) == [Breach.LOST]
    second = (copy(2, 3_000, due=4_000), waits(2, 3_000), copy(2, 4_001, READY, due=4_000, offset=1))
    assert kinds((*FORWARDED, *second), TAKEN_OVER) == [Breach.LOST]
    assert kinds((*FORWARDED, *second, told("COMMIT", 2, at=4_500)), TAKEN_OVER) == []


def test_a_failure_that_a_service_posted_twice_in_its_time_as_a_relay_stays_a_note() -> None:
    posts = (copy(), copy(at=5, due=1_005, offset=1), waits(), waits(at=5))
    forwards = (copy(at=1_100, topic=READY), copy(at=1_101, topic=READY, due=1_005, offset=1))
    both = replace(TERMS, service={(READY, 0): Progress(2)})
    assert kinds((*posts, *forwards), both) == [Breach.REPEATED]


# --- what is deleted -------------------------------------------------------------------------------------------------


def since(ms: int, *topics: str) -> Terms:
    return replace(TERMS, known=Known(dict.fromkeys(topics, BEGIN + ms)))


@pytest.mark.parametrize(
    ("facts", "topic"),
    [
        ((copy(),), EVENTS),
        (JUMPED[2:], EVENTS),
        ((waits(), told("COMMIT", at=1_500)), SECOND),
        ((told("DLQ", 0, 5_000, due=5_000),), DLQ),
        ((copy(), told("COMMIT", at=1_500)), EVENTS),
    ],
    ids=["successor", "counts", "copy", "dead letter", "event"],
)
def test_nobody_is_blamed_for_what_was_deleted(facts: tuple[Fact, ...], topic: str) -> None:
    assert kinds(facts, since(10_000, topic)) == []
    assert kinds(facts) != []


def test_what_is_younger_than_a_hanging_transaction_may_have_its_companions_behind_it() -> None:
    assert kinds(ONCE[:2], replace(TERMS, known=Known(until=BEGIN - 1))) == []


def test_a_main_record_that_is_deleted_or_compacted_away_is_not_called_made_up() -> None:
    terms = replace(TERMS, compare=True)
    assert kinds(ONCE, replace(terms, begins={("orders", 0): 8})) == []
    assert kinds(ONCE, replace(terms, begins={("orders", 0): 0}, compacted=frozenset({"orders"}))) == []
    assert kinds(ONCE, replace(terms, begins={("orders", 0): 0})) == [Breach.NO_RECORD]


def test_text_of_strangers_is_made_printable() -> None:
    odd = replace(waits(), reason="\x1b[2J")
    [finding] = [found for found in judge((copy(), odd, ONCE[2]), TERMS) if found.kind is Breach.MISTOLD]
    assert finding.text.isprintable()
