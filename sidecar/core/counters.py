"""Plain counters of what happened, cheap enough for every record; `sidecar/observability` turns them into metrics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reconsume.sidecar.core.record import Record
from reconsume.topics.durations import render_duration
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Requeue, Retry, Written

LATENESS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)
"""ms. The target is 20 ms at p99, so the bounds are close together around it."""


MOST_REASONS = 1_000
"""Pairs of topic and reason that are counted separately. A service may give each dead letter a reason of its own;
without this limit the reasons would fill the memory."""


MOST_STRAYS = 20
"""Names of unknown topics that are counted separately. They come from headers, which may hold any text."""
OTHERS = "(others)"
UNKNOWN = "(unknown)"
"""The metric label in place of a topic name that only a header gives."""


class Histogram:
    """Hold the counts of values by upper bound, their number and their sum, as a Prometheus histogram needs them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Add one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: list[int]) -> None:
        """Add many values and sort the list in place: less than half of the cost of adding each value alone."""
        values.sort()
        self.total += sum(values)
        below = 0
        for index, bound in enumerate(self.bounds):
            if below == len(values):
                return
            upto = bisect_right(values, bound)
            self.counts[index] += upto - below
            below = upto
        self.counts[-1] += len(values) - below


class FirstFailure(NamedTuple):
    """The first failure of a topic and class in one lane since the log looked.

    `times`: how often the record had been retried.
    """

    id: str
    topic: str
    reason: str
    text: str
    times: int


class FailureCounts:
    """The failed attempts of one lane, by main topic and class of the reason. A repetition in place counts too."""

    def __init__(self) -> None:
        self.by_cause: Counter[tuple[str, str]] = Counter()
        self.first: dict[tuple[str, str], FirstFailure] = {}
        """The first failure of each topic and class since the log took them."""

    def add(self, record: Record, reason: str, text: str = "") -> None:
        """Count a failed attempt, and keep the first one of its class for the log.

        `reason`: its class, already bounded in number. `text`: what the service said.
        """
        cause = (record.main_topic, reason)
        if cause not in self.first and len(self.first) < MOST_REASONS:
            self.first[cause] = FirstFailure(record.id, record.main_topic, reason, text, record.times)
        known = cause in self.by_cause or len(self.by_cause) < MOST_REASONS
        self.by_cause[cause if known else (OTHERS, OTHERS)] += 1

    def take_first(self) -> list[FirstFailure]:
        """Return the first failures since the last call."""
        taken, self.first = list(self.first.values()), {}
        return taken


class LaneCounters:
    """Hold the counters of one lane."""

    def __init__(self) -> None:
        self.deliveries: Counter[tuple[str, str, str]] = Counter()
        """Deliveries by (main topic, level, outcome)."""
        self.retries: Counter[tuple[str, str]] = Counter()
        """Retries that are in Kafka, by (topic, level)."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Dead letters that are in Kafka, by (topic, reason)."""
        self.failures = FailureCounts()
        self.hops = 0
        self.forwarded = 0
        """Due records copied to the ready topic (relay)."""
        self.passed_over: Counter[str] = Counter()
        """Records that are not in the group's subscription, by topic."""
        self.strays: Counter[str] = Counter()
        """Copies of topics that this instance does not consume, passed on or dead-lettered, by topic."""
        self.fenced_answers = 0
        """Outcomes that came after the assignment of their partition had ended."""
        self.bad_headers = 0
        self.odd_requests = 0
        """Retries that asked for a delay or level out of bounds. The ladder decided instead; in ordered mode, a wait
        within its bounds."""
        self.lateness = Histogram(LATENESS_BOUNDS)

    def answered(self, record: Record, level: str, label: str) -> None:
        """Count the outcome of one delivery."""
        topic = record.source.topic if record.retry_state is None else record.retry_state.topic
        self.deliveries[topic, level, label] += 1

    def late(self, record: Record, wait_ms: int | None, wall_ms: int) -> None:
        """Record how late a retry is released at `wall_ms` (epoch ms) after it waited `wait_ms` in its level."""
        if record.retry_state is not None and wait_ms is not None:
            self.lateness.add(max(0, wall_ms - max(record.retry_state.due_at, record.timestamp + wait_ms)))

    def count(self, decision: Commit | Written) -> None:
        """Count a decision that is in Kafka."""
        match decision:
            case Retry(retry_state=retry_state, level=level):
                self.retries[retry_state.topic, "ready" if level is None else render_duration(level)] += 1
            case Forward():
                self.forwarded += 1
            case DeadLetter(retry_state=retry_state, reason=reason, stray=stray):
                topic = UNKNOWN if stray else retry_state.topic  # a metric label must not hold text from a header
                key = (topic, reason)
                known = key in self.dead_letters or len(self.dead_letters) < MOST_REASONS
                self.dead_letters[key if known else (topic, "other")] += 1
                if stray:
                    self._strayed(retry_state.topic)
            case Hop(retry_state=retry_state, stray=True):
                self._strayed(retry_state.topic)
            case Hop():
                self.hops += 1
            case Requeue() | Commit():
                pass

    def _strayed(self, topic: str) -> None:
        known = topic in self.strays or len(self.strays) < MOST_STRAYS
        self.strays[topic if known else OTHERS] += 1


def strays_in(all_counters: Iterable[LaneCounters]) -> dict[str, int]:
    """Return the copies of topics that this instance does not consume, by topic, over all lanes."""
    strays: Counter[str] = Counter()
    for counters in all_counters:
        strays += counters.strays
    return dict(strays)
