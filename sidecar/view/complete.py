"""Since when a copy that is made from events is complete, and what it lacks. Pure.

Events leave their topic by its retention, so a copy that begins to read later does not have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.printable import plural
from reconsume.sidecar.view.store import BOUND, Bound, Missing


def begins_of(spans: Mapping[PartitionName, Span], most: int | None) -> dict[PartitionName, int]:
    """Return the offset from which each partition is read, so that about `most` records are read; None: all.

    The oldest are left out, in each partition the same part of it.
    """
    total = sum(span.end - span.begin for span in spans.values())
    if most is None or total <= most:
        return {partition: span.begin for partition, span in spans.items()}
    return {partition: span.end - (span.end - span.begin) * most // total for partition, span in spans.items()}


class Gaps:
    """The time since when a copy has every event, learned from the first record after each gap."""

    def __init__(self, since: int) -> None:
        """`since`: what was known before (epoch ms)."""
        self.since = since
        self._open: set[PartitionName] = set()

    def find(self, begins: Mapping[PartitionName, int], stored: Mapping[PartitionName, int]) -> None:
        """Note the partitions that begin behind what was read of them: events between are not in the copy."""
        self._open = {partition for partition, begin in begins.items() if begin > stored.get(partition, 0)}

    def met(self, partition: PartitionName, at: int) -> None:
        """Take the time (epoch ms) of the first record of a partition, or of its end if it has none."""
        if partition in self._open:
            self._open.remove(partition)
            self.since = max(self.since, at)


def shortfall(missing: Missing, skipped: int, bound: Bound = BOUND) -> str:
    """Return one sentence about what a copy lacks, beside what has left the topic; empty if nothing.

    `skipped`: events that were not read because no more were asked for.
    """
    sentences = list(_sentences(missing, skipped))
    if not sentences:
        return ""
    limit = (
        f"the bound of {plural(bound.records, 'record')} or {bound.bytes // 1_000_000_000} GB is reached: "
        if any(missing)
        else ""
    )
    return f"{limit}{' and '.join(sentences)} are left out; Spark's view (`{hint('view run')}`) has no such bound"


def _sentences(missing: Missing, skipped: int) -> Iterable[str]:
    if skipped:
        yield f"{plural(skipped, 'event')}, the oldest,"
    if missing.done:
        yield f"{plural(missing.done, 'done record')}, the oldest,"
    if missing.events:
        yield f"{plural(missing.events, 'event')} of records that had no room"
