"""Compute how far the level topics are due. The due records of a partition are always a prefix of it. Pure functions.

A level topic carries append times and has one delay, so its records become due in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
PartitionName: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""
Offsets: TypeAlias = Mapping[PartitionName, int]

Skips: TypeAlias = Mapping[PartitionName, Sequence[tuple[int, int]]]

NO_LATER = -1
"""Kafka's answer for "the first offset at or after this time" if the partition has no record that late."""


class Reach(NamedTuple):
    """The source's position: the next offset to read in each partition.

    `dropped` counts the offsets that retention deleted before they were read. `ids` are the ids of the topics that the
    offsets belong to. `skips` are ranges ahead that are not read, because another query or sidecar has handled them:
    the first offset of each, and the one behind it.
    """

    next: dict[PartitionName, int]
    dropped: int = 0
    ids: Mapping[str, str] = {}
    skips: Skips = {}  # noqa: RUF012 - never changed


class Range(NamedTuple):
    """The offsets of one partition from `start` up to, but not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


def due_ends(ends: Offsets, cuts: Offsets) -> dict[PartitionName, int]:
    """Return the end of the due offsets of each partition.

    `cuts` are the first offsets that are not due, or NO_LATER where all are due. The caller must ask for `ends` before
    it asks for `cuts`. A record that is appended between the two requests is not due. In the other order, a partition
    without a later record would be read up to an end that includes this record.
    """
    return {
        partition: end if cuts[partition] == NO_LATER else min(end, cuts[partition]) for partition, end in ends.items()
    }


def renewed(reach: Reach, ids: Mapping[str, str]) -> Reach:
    """Return `reach` without the offsets in topics that were deleted and created again, and with the new ids."""
    kept = {partition: offset for partition, offset in reach.next.items() if not is_anew(partition[0], reach.ids, ids)}
    skips = {partition: ranges for partition, ranges in reach.skips.items() if partition in kept}
    return Reach(kept, reach.dropped, {**reach.ids, **ids}, skips)


def is_anew(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether the topic is known to have been deleted and created again."""
    return topic in before and topic in after and before[topic] != after[topic]


def still_good(start: Reach, end: Reach) -> dict[PartitionName, int]:
    """Return the offsets of `start` in topics that still are those of `end`.

    Where no id was kept, a partition whose offset goes back belongs to a topic that was created again.
    """
    kept = renewed(start, end.ids).next
    return {at: offset for at, offset in kept.items() if at[0] in start.ids or end.next.get(at, offset) >= offset}


def begin(reach: Reach, lows: Offsets) -> Reach:
    """Return `reach` with each partition moved up to its first record; the offsets below it are added to `dropped`."""
    moved = {partition: max(reach.next.get(partition, low), low) for partition, low in lows.items()}
    lost = sum(moved[partition] - reach.next.get(partition, low) for partition, low in lows.items())
    # A partition that the brokers do not list keeps its offset: it may be missing only for a moment.
    return reach._replace(next={**reach.next, **moved}, dropped=reach.dropped + lost)


def cut_short(reach: Reach, ends: Offsets) -> list[PartitionName]:
    """Return the partitions that end before the source's offset.

    Their log was truncated, or the topic was created again and its old id is unknown.
    """
    return sorted(partition for partition, end in ends.items() if end < reach.next.get(partition, 0))


def advance(reach: Reach, ends: Offsets, most: int) -> Reach:
    """Return the position after the next batch of at most `most` offsets, shared fairly among the partitions.

    It is never beyond `ends` and never before `reach`.
    """
    moved = dict(reach.next)
    waiting = {
        partition: end - moved.get(partition, 0) for partition, end in ends.items() if end > moved.get(partition, 0)
    }
    remaining = most
    for rank, (partition, count) in enumerate(sorted(waiting.items(), key=lambda item: (item[1], item[0]))):
        share = min(count, remaining // (len(waiting) - rank))
        moved[partition] = moved.get(partition, 0) + share
        remaining -= share
    ahead = {at: [(first, end) for first, end in ranges if end > moved[at]] for at, ranges in reach.skips.items()}
    return reach._replace(next=moved, skips={at: ranges for at, ranges in ahead.items() if ranges})


def ranges_of(start: Reach, end: Reach, lows: Offsets) -> list[Range]:
    """Return the ranges to read between two positions.

    A partition whose log was truncated goes back, and so has no range.
    """
    ranges, before = [], still_good(start, end)
    for partition, last in sorted(end.next.items()):
        # `first` is beyond `last` if retention has deleted the whole range.
        first = max(before.get(partition, 0), lows.get(partition, 0))
        if first < last:
            ranges.append(Range(*partition, first, last))
    return ranges


def taken_since(start: Reach, end: Reach, lows: Offsets) -> int:
    """Return how many offsets between two positions retention has deleted after `end` was computed."""
    before = still_good(start, end)
    firsts = {partition: before.get(partition, lows[partition]) for partition in end.next if partition in lows}
    gone = sum(max(0, min(lows[partition], end.next[partition]) - first) for partition, first in firsts.items())
    return max(0, gone - (end.dropped - start.dropped))


def shared_out(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges in at most `tasks` lists of about the same size."""
    lists: list[list[Range]] = [[] for _ in range(min(tasks, len(ranges)))]
    for longest in sorted(ranges, key=lambda range_: range_.start - range_.end):
        min(lists, key=lambda some: sum(range_of.end - range_of.start for range_of in some)).append(longest)
    return lists


def to_json(reach: Reach) -> dict[str, Any]:
    """Return the position as JSON for Spark, always in the same order: Spark compares two of them as texts."""
    kept = {"next": by_topic(reach.next), "dropped": reach.dropped, "ids": dict(sorted(reach.ids.items()))}
    return {**kept, "skips": by_topic(reach.skips)} if reach.skips else kept


def by_topic(values: Mapping[PartitionName, T]) -> dict[str, dict[str, T]]:
    """Return values of partitions by topic and by number as text, as JSON has them, in order."""
    topics: dict[str, dict[str, T]] = {}
    for (topic, partition), value in sorted(values.items(), key=lambda item: item[0]):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def by_partition(topics: Mapping[str, Mapping[str, T]]) -> dict[PartitionName, T]:
    """Return what `by_topic` has made of values of partitions."""
    return {(topic, int(number)): value for topic, values in topics.items() for number, value in values.items()}


def from_json(kept: Mapping[str, Any]) -> Reach:
    """Return the position from the JSON that Spark kept."""
    skips = {at: [(first, end) for first, end in ranges] for at, ranges in by_partition(kept.get("skips", {})).items()}
    return Reach(by_partition(kept["next"]), kept["dropped"], kept.get("ids", {}), skips)
