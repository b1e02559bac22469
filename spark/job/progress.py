"""What a micro-batch of the view's query means: figures, positions to commit, and events that were lost. Pure.

*Positions.* The job commits its offsets in a group's events for the consumer group `topics.names.Names.view_group`.
Readers see from them how old the view is, and any tool of Kafka shows their lag. A position's metadata names, by their
ids, the topics that it is true of: all events before it are rows of *that* VIEW topic. If the events topic or the VIEW
topic is another one now, the position means nothing, and the group is read from its first event, like one that was
never read. There is no other state: Spark's own checkpoint of the query is a temporary folder.

*Lost events.* Retention, or an operator, may delete events before they were read. Spark skips them in silence. They are
counted to the offset, from the batches' ranges and the first offsets that the partitions still have.

`RunProgress` is the state of one run of the query, which is one start of it in Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from reconsume.spark.job.groups import Plan
from reconsume.spark.job.kafka import PartitionName, Position
from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX
from reconsume.topics.names import Names
from reconsume.topics.view_position import render_position

AGAIN_SECONDS = 3_600.0
"""Seconds after which unchanged offsets are committed again. Kafka deletes those of a group without members a week
after their last commit, or as early as `offsets.retention.minutes` says."""
OBSERVED = "events"
"""The name of the figures (`read`, `bad`, `first`) that `schema` has each query report."""


class Batch(NamedTuple):
    """One finished micro-batch.

    `seconds` is its duration. `behind` counts the records that were in Kafka when it began and that it did not read.
    `first_bad` is one of the `bad` records as JSON. `starts` is empty in a run's first batch.
    """

    number: int
    rows: int
    seconds: float
    behind: int
    bad: int
    first_bad: str
    starts: Mapping[PartitionName, int]
    ends: Mapping[PartitionName, int]


def batch_of(progress: Mapping[str, Any]) -> Batch:
    """Return the batch of one of Spark's progress reports; a missing number counts as 0."""
    observed = (progress.get("observedMetrics") or {}).get(OBSERVED) or {}
    source: Mapping[str, Any] = next(iter(progress.get("sources") or ()), {})
    ends, latest = offsets(source.get("endOffset")), offsets(source.get("latestOffset"))
    return Batch(
        number=int(progress.get("batchId") or 0),
        rows=int(progress.get("numInputRows") or 0),
        seconds=int((progress.get("durationMs") or {}).get("triggerExecution") or 0) / 1000,
        behind=sum(max(0, end - ends.get(partition, 0)) for partition, end in latest.items()),
        bad=int(observed.get("bad") or 0),
        first_bad=str(observed.get("first") or ""),
        starts=offsets(source.get("startOffset")),
        ends=ends,
    )


def offsets(value: object) -> dict[PartitionName, int]:
    """Return offsets by topic and partition. Spark gives them as JSON, or as JSON in a text."""
    parsed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        return {}
    return {
        (topic, number): int(offset)
        for topic, partitions in parsed.items()
        if isinstance(partitions, Mapping)
        for number, offset in partitions.items()
    }


def offsets_json(offsets: Mapping[PartitionName, int]) -> str:
    """Return offsets as Spark's option `startingOffsets` takes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, {})[number] = offset
    return json.dumps(topics)


class Begin(NamedTuple):
    """Where a query begins: each partition's offset, and the groups that were read before and are read again."""

    offsets: Mapping[PartitionName, int]
    reread: tuple[str, ...]


def begin(
    plan: Plan,
    firsts: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
    committed: Mapping[PartitionName, Position],
) -> Begin:
    """Return where to begin in the partitions of the plan's events topics.

    `firsts` and `ends`: the first offset of each partition and the one behind its last. A partition without a position
    begins at its first offset. So does one whose position is of another topic, or behind the end of a log that was cut.
    """
    begins, reread = dict[PartitionName, int](), set[str]()
    for partition, first in firsts.items():
        group = partition[0].removesuffix(EVENTS_SUFFIX)
        position = committed.get(partition)
        is_true = position is not None and position.metadata == metadata(plan, group)
        if position is not None and is_true and position.offset <= ends[partition]:
            begins[partition] = position.offset
            continue
        begins[partition] = first
        if position is not None:
            reread.add(group)
    return Begin(begins, tuple(sorted(reread)))


def metadata(plan: Plan, group: str) -> str:
    """Return the metadata of a position in the group's events."""
    return render_position(plan.ids[group + EVENTS_SUFFIX], plan.ids[group + VIEW_SUFFIX])


def to_commit(plan: Plan, offsets: Mapping[PartitionName, int]) -> Iterator[tuple[str, PartitionName, Position]]:
    """Yield what to commit for these offsets: the consumer group, the partition, and its position."""
    for partition, offset in offsets.items():
        group = partition[0].removesuffix(EVENTS_SUFFIX)
        yield Names(group).view_group, partition, Position(offset, metadata(plan, group))


class RunProgress:
    """How far one run of the query has read, what of it was committed, and what it did not find.

    `begins` are the offsets at which it has begun, which are all committed. `now`: seconds of a clock that never goes
    back.
    """

    def __init__(self, plan: Plan, begins: Mapping[PartitionName, int], now: float) -> None:
        self._plan = plan
        self._read, self._committed, self._all_at = dict(begins), dict(begins), now
        self._is_changed = False
        self._spans: dict[PartitionName, tuple[int, int]] = {}
        self._rows = 0

    def take(self, batch: Batch) -> None:
        """Take in a batch that has ended."""
        for partition, end in batch.ends.items():
            start = (batch.starts or self._read).get(partition, end)
            if start < end:
                self._spans[partition] = self._spans.get(partition, (start, end))[0], end
        self._read |= batch.ends
        self._rows += batch.rows
        self._is_changed = True

    def keep(self, plan: Plan) -> None:
        """Forget the partitions of topics that the plan does not have, or that are other ones there."""
        gone = {topic for topic, topic_id in self._plan.ids.items() if plan.ids.get(topic) != topic_id}
        groups = {topic.removesuffix(EVENTS_SUFFIX).removesuffix(VIEW_SUFFIX) for topic in gone}
        for partitions in (self._read, self._committed, self._spans):
            for partition in [one for one in partitions if one[0].removesuffix(EVENTS_SUFFIX) in groups]:
                del partitions[partition]

    def news(self, now: float) -> dict[str, dict[PartitionName, Position]]:
        """Return what to commit, by consumer group: what has changed, and all once in AGAIN_SECONDS."""
        if now - self._all_at > AGAIN_SECONDS:
            self._committed, self._all_at, self._is_changed = {}, now, True
        if not self._is_changed:
            return {}
        changed: dict[str, dict[PartitionName, Position]] = {}
        for group, partition, position in to_commit(self._plan, self._read):
            if self._committed.get(partition) != position.offset:
                changed.setdefault(group, {})[partition] = position
        self._is_changed = bool(changed)
        return changed

    def committed(self, positions: Mapping[PartitionName, Position]) -> None:
        """Note that these offsets were committed."""
        self._committed |= {partition: position.offset for partition, position in positions.items()}

    def suspicious(self) -> tuple[PartitionName, ...]:
        """Return the partitions of the ranges since the last `lost`, if more offsets were in these than were read."""
        unread = sum(end - start for start, end in self._spans.values()) - self._rows
        if unread > 0:
            return tuple(sorted(self._spans))
        self._spans, self._rows = {}, 0
        return ()

    def lost(self, firsts: Mapping[PartitionName, int]) -> Counter[str]:
        """Return how many offsets of the ranges since the last call each topic no longer had.

        `firsts`: the first offsets of the suspicious partitions, asked for after the batches. An offset that was
        deleted just after it was read looks like a lost one. So at most as many are counted as were not read. Markers
        of transactions are also offsets that are not read.
        """
        counts: Counter[str] = Counter()
        unread = sum(end - start for start, end in self._spans.values()) - self._rows
        for partition, first in sorted(firsts.items()):
            start, end = self._spans[partition]
            gone = min(max(0, min(first, end) - start), unread)
            unread -= gone
            if gone:
                counts[partition[0]] += gone
        self._spans, self._rows = {}, 0
        return counts
