"""The instance's part of the group's rate: how many partitions of the main topics it owns, of how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.core.pace.rates import Owned
from reconsume.sidecar.core.record import Partition

COUNT_EVERY_S = 30.0
"""Seconds between two questions to Kafka how many partitions the main topics have; they only grow, and rarely."""
UNANSWERED_S = 1.0
"""Seconds until the next question if Kafka has not answered, or if no rate of the group is set. A topic that is
missing, or may not be seen, is asked about no sooner than the others."""


class GroupShare:
    """The share of one instance.

    `owned`: returns the partitions that the main lane owns. `count`: asks Kafka, and blocks. `wanted`: whether the
    group has a rate. `changed`: called when Kafka has told another number.
    """

    def __init__(
        self,
        topics: frozenset[str],
        owned: Callable[[], Iterable[Partition]],
        count: Callable[[frozenset[str]], Mapping[str, int]],
        wanted: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._topics, self._owned, self._count = topics, owned, count
        self._wanted, self._changed = wanted, changed
        self._counts: dict[str, int] = {}

    def share(self) -> Owned:
        """Return how many partitions of the main topics are owned, of how many.

        Before Kafka has told of a topic, it has at least the partitions up to the highest that is owned.
        """
        counts, owned = dict(self._counts), 0
        for topic, number in self._owned():
            if topic in self._topics:
                owned += 1
                counts[topic] = max(counts.get(topic, 0), number + 1)
        return Owned(owned, sum(counts.values()))

    async def follow(self) -> None:
        """Ask Kafka again and again, as long as the group has a rate."""
        while True:
            await asyncio.sleep(await self._ask_members() if self._wanted() else UNANSWERED_S)

    async def _ask_members(self) -> float:
        """Ask once; return the seconds until the next question."""
        counts = await on_own_thread("group-share", lambda: self._count(self._topics))
        if any(self._counts.get(topic) != count for topic, count in counts.items()):
            self._counts.update(counts)
            self._changed()
        return COUNT_EVERY_S if counts else UNANSWERED_S
