"""Compute the offsets up to which the view's job has read, so that readers know how old the view is. Pure.

The job commits its offsets in a group's events for the consumer group `topics.names.Names.view_group`. Any Kafka tool
shows its lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from spark.job.lost_events import PartitionName
from spark.job.progress import offsets
from spark.names import EVENTS_SUFFIX

AGAIN_SECONDS = 3_600.0
"""Seconds after which unchanged offsets are committed again. Kafka deletes those of a group without members after a
week."""


class ReadPositions:
    """The offsets that were committed. `now` are seconds of a clock that never goes back."""

    def __init__(self, now: float) -> None:
        self._committed: dict[PartitionName, int] = {}
        self._since = now

    def news(self, progress: Mapping[str, Any], now: float) -> dict[str, dict[PartitionName, int]]:
        """Return the offsets to commit after a batch, by retried group: the changed, all once in AGAIN_SECONDS."""
        if now - self._since > AGAIN_SECONDS:
            self._committed, self._since = {}, now
        changed: dict[str, dict[PartitionName, int]] = {}
        ends = (offsets(source.get("endOffset")) for source in progress.get("sources") or ())
        for partition, at in chain.from_iterable(end.items() for end in ends):
            if self._committed.get(partition) != at:
                changed.setdefault(partition[0].removesuffix(EVENTS_SUFFIX), {})[partition] = at
        return changed

    def committed(self, positions: Mapping[PartitionName, int]) -> None:
        """Note that these offsets were committed."""
        self._committed |= positions
