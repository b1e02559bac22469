"""What the view's job tells of how far it has read, so that readers know how old the view is. Pure.

It commits its places in a group's events as the offsets of `topics.names.Names.view_group`: any tool shows its lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from spark.job.lost_events import Place
from spark.job.progress import offsets
from spark.names import EVENTS_SUFFIX

AGAIN_SECONDS = 3_600.0
"""After which unchanged places are told again: Kafka forgets those of a group without members after a week."""


class Places:
    """The places that were told; `now` are seconds that never go back."""

    def __init__(self, now: float) -> None:
        self._told: dict[Place, int] = {}
        self._since = now

    def news(self, progress: Mapping[str, Any], now: float) -> dict[str, dict[Place, int]]:
        """By retried group what has changed with a batch, by Spark's progress; everything once in AGAIN_SECONDS."""
        if now - self._since > AGAIN_SECONDS:
            self._told, self._since = {}, now
        found: dict[str, dict[Place, int]] = {}
        ends = (offsets(source.get("endOffset")) for source in progress.get("sources") or ())
        for place, at in chain.from_iterable(end.items() for end in ends):
            if self._told.get(place) != at:
                found.setdefault(place[0].removesuffix(EVENTS_SUFFIX), {})[place] = at
        return found

    def told(self, places: Mapping[Place, int]) -> None:
        """Kafka has them."""
        self._told |= places
