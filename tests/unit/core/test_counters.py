"""The plain counts: values together count as they do alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.counters import MOST_REASONS, Histogram, LaneCounters
from sidecar.core.decide import Commit, DeadLetter, Forward, Hop, Retry
from tests.sim.samples import life

BOUNDS = (1, 5, 20)


@given(st.lists(st.integers(0, 30)))
def test_values_together_count_as_each_alone(values: list[int]) -> None:
    alone, together = Histogram(BOUNDS), Histogram(BOUNDS)
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
