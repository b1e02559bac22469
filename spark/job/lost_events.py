"""Compute which events a batch did not find, because Kafka had deleted them before they were read. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from reconsume.spark.job.positions import PartitionName
from reconsume.spark.job.progress import offsets

Earliest: TypeAlias = Callable[[Collection[PartitionName]], Mapping[PartitionName, int]]
"""A function that returns the first offset that each partition still has."""


def lost(progress: Mapping[str, Any], begins: Mapping[PartitionName, int], earliest: Earliest) -> Counter[str]:
    """Return how many offsets of a batch's range each topic no longer had, from Spark's progress.

    `begins` are the offsets at which the query began, which Spark does not report of its first batch. `earliest` is
    called after the batch, and only if the batch read fewer records than its range has offsets. An offset that was
    deleted just after it was read looks like a lost one. So at most as many are counted as were not read. Markers of
    transactions are also offsets that are not read.
    """
    counts: Counter[str] = Counter()
    spans = spans_of(progress, begins)
    unread = sum(end - start for start, end in spans.values()) - int(progress.get("numInputRows") or 0)
    if unread <= 0:
        return counts
    for partition, first in sorted(earliest(spans.keys()).items()):
        start, end = spans[partition]
        gone = min(max(0, min(first, end) - start), unread)
        unread -= gone
        if gone:
            counts[partition[0]] += gone
    return counts


def spans_of(progress: Mapping[str, Any], begins: Mapping[PartitionName, int]) -> dict[PartitionName, tuple[int, int]]:
    """Return the offsets at which the batch began and ended, by partition.

    A partition that the batch did not read, or that is new in it, has no span.
    """
    spans: dict[PartitionName, tuple[int, int]] = {}
    for source in progress.get("sources") or ():
        starts, ends = offsets(source.get("startOffset")) or begins, offsets(source.get("endOffset"))
        spans |= {
            partition: (starts[partition], end) for partition, end in ends.items() if starts.get(partition, end) < end
        }
    return spans
