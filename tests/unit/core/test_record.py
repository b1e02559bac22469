"""What a record weighs, what is counted of it, and the classes of its reasons."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.counters import MOST_REASONS, Histogram, LaneCounters, strays_in
from reconsume.sidecar.core.outcome import Failed, Rejected
from reconsume.sidecar.core.reason_classes import DAY, MOST, OTHER, ReasonClasses
from reconsume.sidecar.core.record import HEADER_COST, OUR_HEADERS, RECORD_COST, Partition, weight_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Retry
from tests.sim.samples import WALL, life, record

OWN: Headers = [("name", b"12345"), ("n", None)]
OWN_COST = 2 * HEADER_COST + 4 + 5 + 1


def test_key_value_and_headers_are_weighed() -> None:
    assert weight_of(None, None, None, None) == RECORD_COST
    assert weight_of(b"123", b"1234567", [], None) == RECORD_COST + 10
    assert weight_of(b"123", None, OWN, None) == RECORD_COST + 3 + OWN_COST


def test_our_headers_are_weighed_by_what_is_long_in_them() -> None:
    told = life(2)
    ours, long = render_retry_headers(told, "billing", "billing-RETRY-10s"), 2 * len(told.id) + len(told.reason)
    assert weight_of(None, b"v", ours, told) == RECORD_COST + 1 + OUR_HEADERS + long
    assert weight_of(None, b"v", OWN + ours, told) == RECORD_COST + 1 + OWN_COST + OUR_HEADERS + long


def test_headers_of_another_order_are_weighed_one_by_one() -> None:
    told = life(2)
    ours = render_retry_headers(told, "billing", "billing-RETRY-10s")[::-1]
    each = sum(HEADER_COST + len(name) + len(data or b"") for name, data in ours)
    assert weight_of(None, None, ours, told) == RECORD_COST + each


# --- the plain counts: values together count as they do alone --------------------------------------------------------


BOUNDS = (1, 5, 20)


@given(st.lists(st.lists(st.integers(0, 30)), max_size=3))
def test_values_together_count_as_each_alone(runs: list[list[int]]) -> None:
    alone, together = Histogram(BOUNDS), Histogram(BOUNDS)
    for values in runs:
        for value in values:
            alone.add(value)
        together.add_all(values.copy())
    assert (together.counts, together.total) == (alone.counts, alone.total)


def test_each_decision_that_is_in_kafka_counts_once_under_its_own_name() -> None:
    counters = LaneCounters()
    for _ in range(2):
        for decision in (Retry(life(), 10_000), Retry(life(), None), Hop(life(), 10_000), Forward(life())):
            counters.count(decision)
        counters.count(DeadLetter(life(), "http-500", 17))
        counters.count(Commit(life()))
    assert counters.retries == {("orders", "10s"): 2, ("orders", "ready"): 2}
    assert (counters.hops, counters.forwarded) == (2, 2)
    assert counters.dead_letters == {("orders", "http-500"): 2}
    assert not counters.strays


def test_reasons_beyond_the_bound_count_together_and_those_before_go_on_alone() -> None:
    counters = LaneCounters()
    for number in range(MOST_REASONS + 2):
        counters.count(DeadLetter(life(), f"reason-{number}", 1))
    counters.count(DeadLetter(life(), "reason-0", 1))
    assert len(counters.dead_letters) == MOST_REASONS + 1
    assert counters.dead_letters["orders", "other"] == 2
    assert counters.dead_letters["orders", "reason-0"] == 2


def test_a_delivery_counts_under_the_topic_that_the_record_was_first_read_from() -> None:
    counters = LaneCounters()
    counters.answered(record(), "main", "retry")
    counters.answered(record(source=Partition("billing-RETRY-10s", 0), life=life()), "10s", "commit")
    assert counters.deliveries == {("orders", "main", "retry"): 1, ("orders", "10s", "commit"): 1}


def test_a_retry_is_late_from_the_later_of_its_due_time_and_the_end_of_its_level() -> None:
    counters = LaneCounters()
    counters.late(record(timestamp=WALL - 10_000, life=life(due_at=WALL - 7)), 10_000, WALL)
    assert counters.lateness.total == 0
    counters.late(record(timestamp=WALL - 10_004, life=life(due_at=WALL - 7)), 10_000, WALL)
    counters.late(record(timestamp=WALL - 60_000, life=life(due_at=WALL - 3)), 10_000, WALL)
    assert counters.lateness.total == 4 + 3
    counters.late(record(timestamp=WALL, life=life(due_at=WALL)), 10_000, WALL)  # the clock was set back
    assert (counters.lateness.total, sum(counters.lateness.counts)) == (7, 4)


def test_strays_are_summed_over_all_lanes() -> None:
    main, retry = LaneCounters(), LaneCounters()
    for counters, topic in ((main, "refunds"), (retry, "refunds"), (retry, "returns")):
        counters.count(Hop(replace(life(), topic=topic), 10_000, stray=True))
    assert strays_in([main, retry]) == {"refunds": 2, "returns": 1}


# --- A service that gives each record a reason of its own fills neither the metrics nor the sums ---------------------


NOON = 20_000 * DAY + DAY // 2


def test_of_a_days_classes_the_first_are_kept_and_the_rest_is_other_with_its_word_in_the_text() -> None:
    classes = ReasonClasses()
    said = [classes.bounded(Rejected(f"order-{number}", "late"), NOON) for number in range(MOST + 2)]
    assert [one.reason for one in said[:MOST]] == [f"order-{number}" for number in range(MOST)]
    assert said[MOST:] == [Rejected(OTHER, f"order-{number}: late") for number in (MOST, MOST + 1)]
    assert classes.bounded(Failed("order-3"), NOON) == Failed("order-3"), "a kept one stays"
    assert classes.bounded(Failed("order-999", delay=5, asked=True), NOON) == Failed(
        OTHER, "order-999", delay=5, asked=True
    )
    assert classes.bounded(Failed("order-999"), NOON + DAY) == Failed("order-999"), "another day begins anew"


def test_words_and_statuses_have_64_names_each_and_a_status_beyond_them_is_counted_as_its_class() -> None:
    classes = ReasonClasses()
    for number in range(MOST):
        assert classes.bounded(Rejected(f"word-{number}"), NOON).reason == f"word-{number}"
        assert classes.bounded(Failed(f"http-{400 + number}"), NOON).reason == f"http-{400 + number}"
    assert classes.bounded(Failed("http-503", "busy"), NOON) == Failed("http-5xx", "http-503: busy")
    assert classes.bounded(Failed("http-503x"), NOON) == Failed(OTHER, "http-503x"), "a word of the service"


@given(st.lists(st.text("abc", min_size=1, max_size=6) | st.integers(0, 999).map("http-{:03}".format), max_size=600))
def test_however_many_words_and_statuses_a_service_has_few_are_counted(words: list[str]) -> None:
    """Given any, then 64 words and 64 statuses have their name, and neither takes the place of the other."""
    classes = ReasonClasses()
    said = [classes.bounded(Failed(word), NOON).reason for word in words]
    given_words = [
        dict.fromkeys(word for word in words if word.startswith("http-") is status) for status in (False, True)
    ]
    for known, beyond in zip(given_words, (lambda _: OTHER, lambda word: f"{word[:6]}xx"), strict=True):
        kept = list(known)[:MOST]
        expected = [word if word in kept else beyond(word) for word in words if word in known]
        assert [one for one, word in zip(said, words, strict=True) if word in known] == expected
