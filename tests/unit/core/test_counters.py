"""The plain counts: values together count as they do alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.counters import Histogram

BOUNDS = (1, 5, 20)


@given(st.lists(st.integers(0, 30)))
def test_values_together_count_as_each_alone(values: list[int]) -> None:
    alone, together = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in values:
        alone.add(value)
    together.add_all(values.copy())
    assert (together.counts, together.total) == (alone.counts, alone.total)
