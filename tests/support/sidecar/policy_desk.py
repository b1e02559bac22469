"""A policy desk with what it has the lanes do, told news by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.position_reset import ResetOrder
from reconsume.sidecar.group_policy.controller import PolicyController
from reconsume.sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from reconsume.sidecar.group_policy.levels import Undrained
from reconsume.sidecar.group_policy.settings_keeper import SURE_AFTER_LOOKS
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.decision_record import DecisionRecord
from reconsume.topics.policy_record import Heard, PolicyHeard, PolicyRecord
from reconsume.topics.position_ranges import Resets
from tests.support.control_log import said

SETS = ("retry.ladder=[1s]", "retry.levels=[1s, 5s]")
LEVELS = ("billing-RETRY-1s", "billing-RETRY-5s")


class Seen:
    """A desk, and what it had the lanes do."""

    def __init__(self, settings: Settings) -> None:
        self.applied: list[tuple[Settings, frozenset[str]]] = []
        self.expects_queues = False
        self.decided: Mapping[str, DecisionRecord] = {}
        self.resets: list[tuple[tuple[ResetOrder, ...], Resets]] = []
        self.desk = PolicyController(
            settings,
            "me",
            self,
            known_within=0.05,
        )
        self._offset = 0

    def expect_queues(self) -> None:
        self.expects_queues = True

    def apply(self, settings: Settings, leftovers: Collection[str]) -> None:
        self.applied.append((settings, frozenset(leftovers)))

    def obey(self, holds: Holds) -> None:
        """No test looks."""

    def reset(self, orders: tuple[ResetOrder, ...], known: Resets) -> None:
        self.resets.append((orders, known))

    def decide(self, decisions: Mapping[str, DecisionRecord]) -> None:
        self.decided = decisions

    def rewrite_notes(self) -> None:
        """No test looks."""

    async def tell(
        self, *heard: Heard, look: TopicSnapshot | None = None, caught_up: bool = True, live: bool = True
    ) -> None:
        records = tuple(said(*heard, at=wall(), begin=self._offset))
        self._offset += len(records)
        self.desk.on_update(PolicyUpdate(records, look, caught_up, live))
        await asyncio.sleep(0)

    async def look(
        self, *left: str, there: Collection[str] = LEVELS, unknown: Collection[str] = (), caught_up: bool = False
    ) -> None:
        found = Undrained(frozenset(left), frozenset(unknown))
        await self.tell(
            look=TopicSnapshot(frozenset(there), self.desk.wanted(), found, self.desk.awaited()), caught_up=caught_up
        )

    async def miss(self) -> None:
        """The looks after which a topic that the policy needs counts as missing."""
        for _ in range(SURE_AFTER_LOOKS):
            assert self.desk.refused == ()
            await self.look()

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
