"""A record waits in its level for the level's delay, whatever the delay, the broker's clock and the traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.append_times import GRAIN, HANDED_OVER_MS, MOST_NOTES, AppendTimes
from reconsume.sidecar.core.fetching import HOLD_WITHIN_MS, Fetching
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import FetchedRecords, Kind, PartitionState, WantedFetch
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.core.room import Room
from reconsume.topics.levels import LONGEST, TABLE
from tests.sim.samples import WALL

LEVEL = Partition("billing-RETRY-10s", 0)
DELAYS = st.sampled_from((*TABLE, 86_400_000, LONGEST))
SLACK = 3_500
"""ms that a record may be late: from its resume to its fetch, and what the first look did not know."""
START = 10_000
"""Steady ms of the first append."""
RUN = 50
"""Records in one hand-over."""
Clock = Callable[[int], int]
"""How far the broker's clock is ahead of ours (ms) at a steady time."""


class Fetch:
    """The port of a consumer that does as it is told."""

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None: ...


def level_of(delay: int) -> tuple[PartitionState, Fetching]:
    """A partition of a level, in a lane that has room, and what fetches it."""
    partition, agenda = PartitionState(LEVEL, 1, Kind("10s", delay), Progress(0), Bounds()), Agenda(lambda _at_ms: None)
    room = Room(1 << 30, {LEVEL: partition}, Pace(1), agenda, ordered=False)
    return partition, Fetching(Fetch(), room, agenda)


class Log:
    """A level partition: its records by offset, with the time (steady ms) at which each was appended."""

    def __init__(self, appended: Iterable[int], ahead: Clock) -> None:
        self.appended = sorted(appended)
        self.records = [
            Record(LEVEL, offset, 1, WALL + at + ahead(at), None, None, None, None)
            for offset, at in enumerate(self.appended)
        ]

    @property
    def gap(self) -> int:
        """The longest time (ms) between two appends."""
        return max((later - one for one, later in pairwise(self.appended)), default=0)

    def reached(self, steady: int) -> int:
        return next((n for n, at in enumerate(self.appended) if at > steady), len(self.appended))


class Waited(NamedTuple):
    """When a record was appended, and how long it waited (steady ms)."""

    at: int
    ms: int


def waits(log: Log, delay: int, latency: int) -> Iterator[Waited]:
    """Let a consumer read the log, and yield how long each record waited. `latency`: ms from the log to the lane."""
    part, fetching = level_of(delay)
    steady = position = 0
    while position < len(log.records):
        if part.paused is not None:
            steady = max(steady, part.paused.at_ms) + latency
            fetching.resume_if_ready(part, steady)
        steady = max(steady, log.appended[position] + latency)
        now, high = Now(WALL + steady, steady), log.reached(steady - latency)
        rows = log.records[position : min(high, position + RUN)]
        for record, _, left in fetching.admit(part, FetchedRecords(LEVEL, 1, 0, rows, high=high), now):
            yield Waited(log.appended[record.offset], steady + max(0, left) - log.appended[record.offset])
            part.offsets.finish(record.offset)
        position = part.offsets.next if part.paused is None else part.paused.offset
        if part.paused is None and position == high:
            part.append_times.note(high - 1, steady)


class Story(NamedTuple):
    """A level, the traffic on it, and how long (ms) a record takes from its log to the lane."""

    delay: int
    every: int
    """ms from one append to the next on average, over three delays at most."""
    together: int
    """Records that are appended at once."""
    seed: int
    latency: int

    def appended(self) -> list[int]:
        """When each record is appended (steady ms)."""
        random, many = Random(self.seed), min(250, 3 * self.delay // self.every + 2)
        return [
            START + n // self.together * self.together * self.every + random.randint(0, self.every) for n in range(many)
        ]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    delay = draw(DELAYS)
    every = draw(st.sampled_from((delay // 300 + 1, delay // 40 + 1, delay // 3 + 1)))
    together, latency = draw(st.sampled_from((1, 2, 70))), draw(st.sampled_from((5, 400, 1_000)))
    return Story(delay, every, together, draw(st.integers(0, 9)), latency)


@settings(deadline=None, max_examples=60)
@given(stories(), st.integers(-7_200_000, 7_200_000) | st.sampled_from((0, 600_000, -600_000)))
def test_a_record_waits_its_level_and_no_longer_however_far_the_brokers_clock_is_off(story: Story, ahead: int) -> None:
    log = Log(story.appended(), lambda _at: ahead)
    found = list(waits(log, story.delay, story.latency))
    known = [one.ms for one in found if one.at > log.appended[0]]  # before the first look nothing is known
    assert max(one.ms for one in found) <= story.delay + SLACK
    early = HANDED_OVER_MS + 3 * story.latency + log.gap  # that is how old the lane's knowledge of the log may be
    assert min(known, default=story.delay) >= story.delay - max(0, min(early, -ahead))


@settings(deadline=None, max_examples=60)
@given(
    stories(),
    st.lists(st.tuples(st.integers(40, 100), st.integers(-7_200_000, 7_200_000)), min_size=1, max_size=3),
)
def test_a_clock_that_steps_costs_a_small_part_of_a_level(story: Story, steps: list[tuple[int, int]]) -> None:
    """After a first delay, in which the partition is paused as a whole and nothing is seen of its log."""

    def ahead(at: int) -> int:
        return sum(ms for percent, ms in steps if (at - START) * 100 >= percent * 3 * story.delay)

    log = Log(story.appended(), ahead)
    longest = max(one.ms for one in waits(log, story.delay, story.latency))
    assert longest <= story.delay + SLACK + HOLD_WITHIN_MS + 2 * (story.delay // GRAIN + log.gap)


def test_without_a_wrong_clock_the_brokers_time_decides_to_the_millisecond() -> None:
    part, _ = level_of(10_000)
    part.append_times.note(4, 0)
    for offset, at in enumerate((100, 2_000, 5_000), 5):
        record = Record(LEVEL, offset, 1, WALL + at, None, None, None, None)
        assert part.time_left(record, Now(WALL + 5_000, 5_000)) == at + 5_000


@pytest.mark.parametrize("delay", [*TABLE, LONGEST])
def test_the_notes_of_a_busy_partition_cover_its_delay_in_bounded_memory(delay: int) -> None:
    seen = AppendTimes(delay)
    every = max(1, delay // 5_000)
    for n in range(delay // every):
        seen.note(n, n * every)
    assert len(seen._notes) <= MOST_NOTES
    assert seen._notes[0].last <= 2, "what was there a delay ago is still known"


def test_what_is_read_again_from_below_waits_no_longer_for_it() -> None:
    """A stopped partition lets records go, and reads them again after later ones."""
    seen = AppendTimes(10_000)
    seen.note(3, 1_000)
    seen.note(9, 8_000)
    ahead = WALL + 600_000
    assert seen.appended(9, ahead + 8_000, Now(WALL + 9_000, 9_000)) == 8_000
    assert seen.appended(2, ahead + 900, Now(WALL + 9_000, 9_000)) <= 1_000


def test_records_that_hop_before_the_end_of_the_log_is_seen_do_not_hop_without_a_pause() -> None:
    """Given a broker two hours behind, and a log that grows by what hops, then the second copies wait their level."""
    part, fetching = level_of(10_000)
    left = []
    for steady in (START, START + 50):
        at = WALL + steady - 7_200_000
        first = part.offsets.next
        rows = [Record(LEVEL, first + n, 1, at, None, None, None, None) for n in range(10)]
        run = FetchedRecords(LEVEL, 1, 0, rows, high=first + 10)
        left.append([ms for _, _, ms in fetching.admit(part, run, Now(WALL + steady, steady))])
    assert max(left[0]) <= 0, "of the first ones nothing is known"
    assert left[1] == [], "of the second ones it is: they came later"
    assert part.paused is not None
    assert part.paused.at_ms >= START + 10_000 - HANDED_OVER_MS - 1_200
