"""A policy desk with what it has the lanes do, told news by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from reconsume.sidecar.group_policy.controller import PolicyController
from reconsume.sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from reconsume.sidecar.group_policy.removed_levels import Undrained
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.policy_record import Heard, PolicyHeard, PolicyRecord

SETS = ("retry.ladder=[1s]", "retry.levels=[1s, 5s]")
LEVELS = ("billing-RETRY-1s", "billing-RETRY-5s")


class Seen:
    """A desk, and what it had the lanes do."""

    def __init__(self, settings: Settings) -> None:
        self.applied: list[tuple[Settings, frozenset[str]]] = []
        self.expects_queues = False
        self.desk = PolicyController(
            *(settings, "me", self._apply),
            known_within=0.05,
            expect_queues=self._expect,
        )

    def _expect(self) -> None:
        self.expects_queues = True

    def _apply(self, settings: Settings, left: Collection[str]) -> None:
        self.applied.append((settings, frozenset(left)))

    async def tell(
        self, *heard: Heard, look: TopicSnapshot | None = None, caught_up: bool = True, live: bool = True
    ) -> None:
        self.desk.on_update(PolicyUpdate(heard, look, caught_up, live))
        await asyncio.sleep(0)

    async def look(self, *left: str, there: Collection[str] = LEVELS, unknown: Collection[str] = ()) -> None:
        found = Undrained(frozenset(left), frozenset(unknown))
        await self.tell(look=TopicSnapshot(frozenset(there), self.desk.wanted(), found), caught_up=False)

    async def begin(self, *heard: Heard, left: Collection[str] = (), there: Collection[str] = LEVELS) -> None:
        """The first look, and the topic read to its end."""
        await self.look(*left, there=there)
        await self.tell(*heard, live=False)

    @property
    def left(self) -> frozenset[str]:
        return self.applied[-1][1]


def policy(**values: Any) -> PolicyHeard:
    return PolicyHeard(PolicyRecord(values, who="ann", at=5))


Work = Callable[[Seen], Awaitable[None]]


def run(settings: Settings, work: Work) -> None:
    async def main() -> None:
        await work(Seen(settings))

    asyncio.run(main())
