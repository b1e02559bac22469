"""The instance's part of the group's rate follows what it owns, and what Kafka tells of the topics."""

from __future__ import annotations

import asyncio

import pytest

from reconsume.sidecar.core.pace.rates import Owned
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.runtime import group_share
from reconsume.sidecar.runtime.group_share import GroupShare

TOPICS = frozenset({"orders", "bills"})


def test_it_counts_the_partitions_of_main_topics_that_are_owned_of_those_that_are_known() -> None:
    owned, told, changes = set[Partition](), dict[str, int](), list[int]()

    async def work() -> None:
        share = GroupShare(TOPICS, lambda: owned, lambda wanted: told, lambda: True, lambda: changes.append(1))
        assert share.share() == Owned(0, 0)
        owned.update((Partition("orders", 3), Partition("bills", 0), Partition("billing-ORDERED-orders", 3)))
        assert share.share() == Owned(2, 5), "orders has four at least"
        told.update(orders=12, bills=4)
        following = asyncio.create_task(share.follow())
        while not changes:
            await asyncio.sleep(0.001)
        following.cancel()
        assert share.share() == Owned(2, 16)
        owned.remove(Partition("orders", 3))
        assert share.share() == Owned(1, 16)

    asyncio.run(work())


def test_without_a_rate_of_the_group_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_share, "UNANSWERED_S", 0.001)
    asked = list[frozenset[str]]()

    async def work() -> None:
        share = GroupShare(TOPICS, list, lambda wanted: asked.append(wanted) or {}, lambda: False, lambda: None)  # type: ignore[func-returns-value]
        following = asyncio.create_task(share.follow())
        await asyncio.sleep(0.02)
        following.cancel()

    asyncio.run(work())
    assert asked == []
