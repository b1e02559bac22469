"""What a scrape reads: the lanes, and what other parts count, as functions that give the present value."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reconsume.sidecar.core.ages import Ages
from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.release import Release

TRANSACTION_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds. One costs 8–30 ms (measured), and the broker ends it after 10 s."""


class TransactionMeter:
    """Count the results and durations of transactions. Called on the committers' threads."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.durations = Histogram(TRANSACTION_BOUNDS)
        self._lock = threading.Lock()

    def observe(self, label: str, seconds: float) -> None:
        """Count one try.

        A batch that was refused or fenced beforehand never was a transaction, and has no duration.
        """
        with self._lock:
            self.results[label] += 1
            if label not in ("refused", "fenced"):
                self.durations.add(seconds)


@dataclass(frozen=True, slots=True)
class LaneSource:
    """One lane, with the counts of its threads.

    `rebalances`: by kind. `unread_progress`: how often committed progress could not be read.
    `misplaced_progress`: how often it was made for another one. `replaced`: how many clients of the consumer were
    replaced, by why.
    """

    lane: Lane
    rebalances: Mapping[str, int]
    ends: Callable[[], Mapping[Partition, int]] = dict
    """The end of each partition's log."""
    ages: Ages = field(default_factory=Ages)
    unread_progress: Callable[[], int] = lambda: 0
    misplaced_progress: Callable[[], int] = lambda: 0
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that a scrape reads.

    `group` is a label of every series, `labels` say who it belongs to. `mode`: push, pull, relay or broadcast.
    `topics`: the main topics. `levels`: the name of every level, with `ready`.
    """

    group: str
    mode: str
    labels: Sequence[tuple[str, str]]
    lanes: tuple[LaneSource, ...]
    dispatcher: Dispatcher
    deliveries: Histogram
    """Seconds that deliveries took. The delivery adds to it."""
    transactions: TransactionMeter
    topics: tuple[str, ...]
    levels: tuple[str, ...]
    release: Release
    now: Callable[[], Now]
    late_verdicts: Callable[[], int] = lambda: 0
    """Calls that the delivery itself refused, because their lease was no longer valid (pull)."""
    instances_differ: Callable[[], bool] = lambda: False
    """Whether another instance of the group wants other records."""
    bad_policy_records: Callable[[], int] = lambda: 0
    """Records of the policy topic that were skipped."""
    removed_levels: Callable[[], int] = lambda: 0
    """Level topics outside the policy, or of removed main topics, that still hold retries."""
    holds_since: Callable[[], Sequence[int]] = list
    """When each hold in force began (epoch ms)."""
    view_lag: Callable[[], float | None] = lambda: None
    """Seconds by which the local copy of the view may be behind; None if it is unknown or there is no copy."""
    bad_view_records: Callable[[], Mapping[str, int]] = dict
    """Records of the view's topics that were skipped, by `view` and `events`."""
    odd_verdicts: Callable[[], Mapping[str, int]] = dict
    """Answers that look like a verdict and are none, by kind (push, batch)."""
    service_deaths: Callable[[], int] = lambda: 0
    """How often the service died with records (push, batch)."""
    waiting: Callable[[], float] = lambda: 0.0
    """Seconds for which the instance has waited for its service, outside the group; 0 for a member."""
    restarts: Callable[[], Mapping[str, int]] = dict
    """Restarts in place since the process was started by another one, by reason."""
    loop_errors: Callable[[], Mapping[str, int]] = dict
    """Uncaught exceptions on the event loop, by what they belong to."""
