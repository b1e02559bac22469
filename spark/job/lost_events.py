"""Which events a batch did not find, because Kafka had deleted them before they were read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from spark.job.progress import offsets

Place: TypeAlias = tuple[str, str]
"""A topic and a partition's number, as Spark writes it."""
Earliest: TypeAlias = Callable[[Collection[Place]], Mapping[Place, int]]
"""The first offset that each partition still has."""


def lost(progress: Mapping[str, Any], earliest: Earliest) -> Counter[str]:
    """How many offsets of a batch's range each topic no longer had, by Spark's progress; all of them, if unread.

    `earliest` is asked after the batch, and only when it read fewer records than its range has offsets. What was
    deleted just after it was read is not told from what was lost; but markers of transactions aside, no more is counted
    than was not read.
    """
    found: Counter[str] = Counter()
    spans = spans_of(progress)
    unread = sum(end - start for start, end in spans.values()) - int(progress.get("numInputRows") or 0)
    if unread <= 0:
        return found
    for place, first in sorted(earliest(spans.keys()).items()):
        start, end = spans[place]
        gone = min(max(0, min(first, end) - start), unread)
        unread -= gone
        if gone:
            found[place[0]] += gone
    return found


def spans_of(progress: Mapping[str, Any]) -> dict[Place, tuple[int, int]]:
    """Where the batch began and ended in each partition that it went on in; a new one begins wherever it is."""
    spans: dict[Place, tuple[int, int]] = {}
    for source in progress.get("sources") or ():
        starts, ends = offsets(source.get("startOffset")), offsets(source.get("endOffset"))
        spans |= {place: (starts[place], end) for place, end in ends.items() if starts.get(place, end) < end}
    return spans
