"""The plain counts: values together count as they do alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.counters import MOST_REASONS, Histogram, LaneCounters, strays_in
from reconsume.sidecar.core.record import Partition
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Retry
from tests.sim.samples import WALL, life, record

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
