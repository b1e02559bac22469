"""How new the view is, from how far the job has read the events."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.view.age import PRECISION, read_until

A, B = ("billing-RETRY-EVENTS", 0), ("billing-RETRY-EVENTS", 1)
NOW = 1_763_690_000_000
LOGS = st.tuples(*(st.lists(st.integers(NOW - 10**7, NOW), max_size=20).map(sorted) for _ in range(2)))


class Log:
    """Two partitions, as the times of their events."""

    def __init__(self, *times: list[int]) -> None:
        self.times = dict(zip((A, B), times, strict=True))
        self.ends = {place: len(part) for place, part in self.times.items()}
        self.asked = 0

    def first_from(self, time: int) -> dict[PartitionName, int]:
        self.asked += 1
        return {place: self._first(part, time) for place, part in self.times.items()}

    @staticmethod
    def _first(part: list[int], time: int) -> int:
        return next((offset for offset, at in enumerate(part) if at >= time), -1)

    def until(self, read: Mapping[PartitionName, int], low: int = 0) -> int:
        return read_until(read, {place: Span(0, end) for place, end in self.ends.items()}, self.first_from, low, NOW)


def test_a_job_that_has_read_all_is_as_new_as_the_question_and_nothing_more_is_asked() -> None:
    log = Log([NOW - 9_000], [])
    assert (log.until(log.ends), log.asked) == (NOW, 0)


def test_a_job_that_catches_up_is_as_old_as_the_oldest_event_that_it_has_not_read() -> None:
    hour = 3_600_000
    log = Log([NOW - 2 * hour, NOW - hour, NOW - 5], [NOW - 10])
    found = log.until({A: 1, B: 1}, low=NOW - 3 * hour)
    assert NOW - hour - PRECISION <= found <= NOW - hour
    assert log.asked < 16


@given(LOGS, st.integers(0, 20), st.integers(0, 20))
def test_every_event_before_it_is_read_and_the_first_that_is_not_is_near(
    times: tuple[list[int], list[int]], a: int, b: int
) -> None:
    log = Log(*times)
    read = {A: min(a, log.ends[A]), B: min(b, log.ends[B])}
    found = log.until(read)
    unread = [at for place, part in log.times.items() for at in part[read[place] :]]
    assert all(at >= found for at in unread)
    assert found >= min([NOW, *unread]) - PRECISION
