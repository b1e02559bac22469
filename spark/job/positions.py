"""Decide where the view's query begins: at positions in Kafka, with the topics that they are true of. Pure.

The job commits its offsets in a group's events for the consumer group `topics.names.Names.view_group`. Readers see from
them how old the view is, and any Kafka tool shows their lag. A position's metadata names the topics that it speaks of
by their ids: all events before it are rows of *that* VIEW topic. If the events or the VIEW topic is another one now,
the position says nothing, and the group is read from its first event, like one that was never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from reconsume.spark.job.groups import Plan
from reconsume.spark.job.progress import offsets
from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX
from reconsume.topics.names import Names
from reconsume.topics.view_position import render_position

PartitionName: TypeAlias = tuple[str, str]
"""A topic and a partition's number, as Spark writes it."""
AGAIN_SECONDS = 3_600.0
"""Seconds after which unchanged offsets are committed again. Kafka deletes those of a group without members a week
after their last commit, or as early as `offsets.retention.minutes` says."""


class Position(NamedTuple):
    """A committed offset: the next one to read, and the commit's metadata."""

    offset: int
    metadata: str


class Begin(NamedTuple):
    """Where a query begins: each partition's offset, and the groups that are read anew though they were read before."""

    offsets: Mapping[PartitionName, int]
    renewed: tuple[str, ...]


def begin(
    plan: Plan, spans: Mapping[PartitionName, tuple[int, int]], committed: Mapping[PartitionName, Position]
) -> Begin:
    """Return where to begin in the partitions of the plan's events topics.

    `spans`: the first offset of each partition and the one behind its last. A partition without a position begins at
    its first offset. So does one whose position is of another topic, or lies behind the end of a log that was cut.
    """
    begins, renewed = {}, set[str]()
    for partition, (first, end) in spans.items():
        group = partition[0].removesuffix(EVENTS_SUFFIX)
        position = committed.get(partition)
        if position is not None and position.metadata == metadata(plan, group) and position.offset <= end:
            begins[partition] = position.offset
            continue
        begins[partition] = first
        if position is not None:
            renewed.add(group)
    return Begin(begins, tuple(sorted(renewed)))


def metadata(plan: Plan, group: str) -> str:
    """Return the metadata of a position in the group's events."""
    return render_position(plan.ids[group + EVENTS_SUFFIX], plan.ids[group + VIEW_SUFFIX])


def to_commit(plan: Plan, offsets: Mapping[PartitionName, int]) -> Iterator[tuple[str, PartitionName, Position]]:
    """Yield what to commit for these offsets: the consumer group, the partition, and its position."""
    for partition, offset in offsets.items():
        group = partition[0].removesuffix(EVENTS_SUFFIX)
        yield Names(group).view_group, partition, Position(offset, metadata(plan, group))


class ReadPositions:
    """How far one run of the view's query has read, and what of it was committed.

    `now` are seconds of a clock that never goes back. A run is one start of the query: what a former one reports late
    is not true of this one's topics.
    """

    def __init__(self, now: float) -> None:
        self._plan, self._run = Plan((), {}), ""
        self.begins: Mapping[PartitionName, int] = {}
        """Where the run has begun."""
        self.settled = True
        """Whether the run that was begun last, if any, has done a batch, or had nothing to do."""
        self._read: dict[PartitionName, int] = {}
        self._committed: dict[PartitionName, int] = {}
        self._since = now

    def starting(self, plan: Plan, begins: Mapping[PartitionName, int]) -> None:
        """Begin a run for the plan, whose offsets are all committed. It has no id until it is `named`."""
        self._plan, self._run, self.begins, self.settled = plan, "", begins, False
        self._read, self._committed = dict(begins), dict(begins)

    def named(self, run: str) -> None:
        """Note the id of the run that was begun last."""
        self._run = run

    def take(self, progress: Mapping[str, Any]) -> bool:
        """Take in how far a batch has read. Return whether it is of this run."""
        if not self._run or str(progress.get("runId")) != self._run:
            return False
        for source in progress.get("sources") or ():
            self._read |= offsets(source.get("endOffset"))
        self.settled = True
        return True

    def idle(self, run: str) -> None:
        """Note that a run has nothing to do."""
        self.settled |= run == self._run

    def news(self, now: float) -> dict[str, dict[PartitionName, Position]]:
        """Return what to commit, by consumer group: what has changed, and all once in AGAIN_SECONDS."""
        if now - self._since > AGAIN_SECONDS:
            self._committed, self._since = {}, now
        changed: dict[str, dict[PartitionName, Position]] = {}
        for group, partition, position in to_commit(self._plan, self._read):
            if self._committed.get(partition) != position.offset:
                changed.setdefault(group, {})[partition] = position
        return changed

    def committed(self, positions: Mapping[PartitionName, Position]) -> None:
        """Note that these offsets were committed."""
        self._committed |= {partition: position.offset for partition, position in positions.items()}
