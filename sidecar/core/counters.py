"""Plain counts of what happened, cheap enough for every record; an edge turns them into metrics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from sidecar.core.decide import Commit, DeadLetter, Forward, Hop, Retry, Written
from sidecar.core.record import Record
from topics.durations import render_duration

LATENESS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)
"""ms. The target is 20 at p99 (ARCHITECTURE §12), so the scale is fine around it."""


MOST_REASONS = 1_000
"""A service may give every dead letter a reason of its own; it must not fill our memory with them."""


MOST_STRAYS = 20
"""Names of unknown topics that are counted each: they come from headers, which may hold any."""
OTHERS = "(others)"
UNKNOWN = "(unknown)"
"""The label in place of the name of a topic that only a header gives."""


class Histogram:
    """Counts of values by upper bound, their number and their sum: what a Prometheus histogram needs."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Take in one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: list[int]) -> None:
        """Take in many values, which are sorted for it: less than half of what each alone costs."""
        values.sort()
        self.total += sum(values)
        below = 0
        for place, bound in enumerate(self.bounds):
            if below == len(values):
                return
            upto = bisect_right(values, bound)
            self.counts[place] += upto - below
            below = upto
        self.counts[-1] += len(values) - below


class LaneCounters:
    """The counts of one lane."""

    def __init__(self) -> None:
        self.deliveries: Counter[tuple[str, str, str]] = Counter()
        """By (main topic, level, outcome)."""
        self.retries: Counter[tuple[str, str]] = Counter()
        """Retries in Kafka, by (topic, level)."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Dead letters in Kafka, by (topic, reason)."""
        self.hops = 0
        self.forwarded = 0
        """Due records moved to the ready topic (relay)."""
        self.passed_over: Counter[str] = Counter()
        """Records that the group's subscription does not want, by topic."""
        self.strays: Counter[str] = Counter()
        """Copies of topics that this instance does not consume, passed on or dead-lettered, by topic."""
        self.fenced_answers = 0
        self.bad_headers = 0
        self.odd_requests = 0
        """Retries that asked for a delay or level out of bounds: the ladder answered instead."""
        self.lateness = Histogram(LATENESS_BOUNDS)

    def answered(self, record: Record, level: str, label: str) -> None:
        """A delivery has its outcome."""
        topic = record.source.topic if record.life is None else record.life.topic
        self.deliveries[topic, level, label] += 1

    def late(self, record: Record, wait: int | None, wall: int) -> None:
        """A retry that waited `wait` ms in its level is let go at `wall` (epoch ms)."""
        if record.life is not None and wait is not None:
            self.lateness.add(max(0, wall - max(record.life.due_at, record.timestamp + wait)))

    def count(self, decision: Commit | Written) -> None:
        """A decision is in Kafka."""
        match decision:
            case Retry(life=life, level=level):
                self.retries[life.topic, "ready" if level is None else render_duration(level)] += 1
            case DeadLetter(life=life, reason=reason, stray=stray):
                topic = UNKNOWN if stray else life.topic  # a label must not hold what a header says
                key = (topic, reason)
                known = key in self.dead_letters or len(self.dead_letters) < MOST_REASONS
                self.dead_letters[key if known else (topic, "other")] += 1
                if stray:
                    self._strayed(life.topic)
            case Hop(life=life, stray=True):
                self._strayed(life.topic)
            case Hop():
                self.hops += 1
            case Forward():
                self.forwarded += 1
            case Commit():
                pass

    def _strayed(self, topic: str) -> None:
        known = topic in self.strays or len(self.strays) < MOST_STRAYS
        self.strays[topic if known else OTHERS] += 1


def strays_in(tallies: Iterable[LaneCounters]) -> dict[str, int]:
    """Copies of topics that this instance does not consume, by topic, over all lanes."""
    found: Counter[str] = Counter()
    for tally in tallies:
        found += tally.strays
    return dict(found)
