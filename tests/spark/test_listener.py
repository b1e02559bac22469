"""When the job commits how far it has read: on a clock that does not wait, without Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reconsume.spark.job.groups import Plan
from reconsume.spark.job.java_events import JavaEvents
from reconsume.spark.job.listener import RESTS, Listener
from reconsume.spark.job.liveness import Liveness
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.positions import PartitionName, Position, ReadPositions
from reconsume.spark.job.queries import QUERIES

E, RUN = "a-RETRY-EVENTS", "run-1"
PLAN = Plan(("a",), {}, {E: "Ae", "a-RETRY-VIEW": "Av"})
SECONDS = 60


class Brokers:
    """Brokers whose answers take a while, on a clock of their own, and what was committed."""

    def __init__(self, takes: float) -> None:
        self.at, self._takes = 0.0, takes
        self.offsets: list[int] = []

    def earliest(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, int]:
        return dict.fromkeys(partitions, 0)

    def commit(self, groups: Mapping[str, Mapping[PartitionName, Position]]) -> Mapping[str, str]:
        self.at += self._takes
        self.offsets += [position.offset for positions in groups.values() for position in positions.values()]
        return {}


def event(**fields: Any) -> Any:
    """An event of Spark, as far as a listener reads it."""
    return cast("Any", SimpleNamespace(runId=RUN, name="view", **fields))


def batch(number: int) -> Any:
    """A batch of one record."""
    span = {"startOffset": {E: {"0": number}}, "endOffset": {E: {"0": number + 1}}}
    told = {"name": "view", "runId": RUN, "batchId": number, "numInputRows": 1, "sources": [span]}
    return event(progress=SimpleNamespace(json=json.dumps(told)))


@pytest.mark.parametrize(("takes", "commits"), [(0.01, SECONDS), (0.5, SECONDS / (0.5 * RESTS)), (4.0, 2)])
def test_commits_take_a_tenth_of_the_time_at_most_and_what_is_left_is_committed_when_nothing_comes(
    takes: float, commits: float
) -> None:
    brokers, positions = Brokers(takes), ReadPositions(0.0)
    meters = Meters(QUERIES, Liveness(QUERIES, lambda: brokers.at))
    listener = Listener(meters, print, brokers, positions, lambda: brokers.at)
    positions.starting(PLAN, {(E, "0"): 0})
    listener.onQueryStarted(event())
    for number in range(SECONDS):
        brokers.at = max(brokers.at, float(number))
        listener.onQueryProgress(batch(number))
    assert len(brokers.offsets) == pytest.approx(commits, abs=2)
    listener.onQueryIdle(event())
    assert brokers.offsets[-1] == SECONDS
    assert brokers.offsets == sorted(set(brokers.offsets)), "never back, and nothing twice"


def test_java_is_asked_for_no_more_of_a_batch_than_one_text() -> None:
    """PySpark's own translation asks for each value, and takes 50 ms of CPU."""
    brokers, positions = Brokers(0.0), ReadPositions(0.0)
    listener = Listener(Meters(QUERIES, Liveness(QUERIES, lambda: 0.0)), print, brokers, positions, lambda: 0.0)
    positions.starting(PLAN, {(E, "0"): 0})
    listener.onQueryStarted(event())
    told = SimpleNamespace(json=lambda: batch(4).progress.json)
    JavaEvents(listener).onQueryProgress(SimpleNamespace(progress=lambda: told))
    assert brokers.offsets == [5]
