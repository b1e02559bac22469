"""Which holds are in force, in which order, and what is written again to a policy topic that was made anew."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.hold_book import MOST_KEPT, HoldBook
from reconsume.sidecar.group_policy.hold_keeper import HoldKeeper
from reconsume.topics.hold_record import MOST_HOLDS, HoldRecord, hold_key, render_hold

HOUR = 3_600_000


def hold(until: int = HOUR, **more: object) -> HoldRecord:
    return HoldRecord(0, until, "because", "ann", all=True, **more)  # type: ignore[arg-type]


OVER = hold(released_by="bob", released_at=5)


def test_a_hold_is_in_force_until_its_end_or_its_release_or_until_it_is_deleted() -> None:
    book = HoldBook()
    for ident in ("ends", "released", "deleted"):
        book.hear(ident, hold(), 0)
    assert list(book.in_force(0).records) == ["ends", "released", "deleted"]
    book.hear("released", OVER, 10)
    book.hear("deleted", None, 10)
    assert list(book.in_force(HOUR - 1).records) == ["ends"]
    assert not book.in_force(HOUR).records
    assert book.in_force(HOUR).next_end is None


def test_the_first_hundred_are_in_force_and_the_next_follows_when_one_ends() -> None:
    book = HoldBook()
    for number in range(MOST_HOLDS + 5):
        assert book.hear(f"h{number}", hold(), 0) == ""
    force = book.in_force(0)
    assert (len(force.records), force.ignored) == (MOST_HOLDS, 5)
    book.hear("h3", replace(hold(), why="another"), 0)
    assert list(book.in_force(0).records)[3] == "h3", "one that is told of again keeps its turn"
    book.hear("h0", OVER, 0)
    assert list(book.in_force(0).records)[-1] == "h100"


def test_a_flood_takes_no_memory_and_is_named() -> None:
    book = HoldBook()
    for number in range(10_000):
        why = book.hear(f"h{number}", hold(), 0)
    assert "are known already" in why
    assert book.in_force(0).ignored == MOST_KEPT - MOST_HOLDS + MOST_KEPT
    assert len(book.absent(0)) == 0
    book.begin()
    assert len(book.absent(0)) == MOST_KEPT


def test_what_ends_too_late_is_ignored_whatever_its_own_clock_says() -> None:
    book = HoldBook()
    assert "would last more than 7 d" in book.hear("far", HoldRecord(10**13, 10**13 + 1, "x", "ann", all=True), 0)
    assert not book.in_force(0).records


def test_a_topic_made_anew_gets_holds_and_releases_again_and_no_older_record_over_a_newer_one() -> None:
    book = HoldBook()
    book.hear("known", hold(), 0)
    book.hear("gone", hold(), 0)
    book.hear("gone", OVER, 0)
    book.hear("other", hold(), 0)
    book.begin()
    book.hear("other", OVER, 0)
    assert book.absent(0) == {"known": hold(), "gone": OVER}
    book.hear("gone", hold(), 0)  # of one that was frozen, and has not heard of the release
    assert list(book.in_force(0).records) == ["known"]
    assert book.absent(0)["gone"] == OVER


@pytest.fixture
def clock() -> list[int]:
    return [0]


def test_the_keeper_obeys_each_change_once_and_writes_each_record_once(clock: list[int]) -> None:
    obeyed: list[frozenset[str]] = []

    def obey(holds: Holds) -> None:
        obeyed.append(holds.ids)

    async def work() -> None:
        keeper = HoldKeeper(obey, lambda: Now(clock[0], clock[0]))
        keeper.hear("a", hold(until=50))
        keeper.take(caught_up=True)
        keeper.take(caught_up=True)
        assert obeyed == [{"a"}]
        assert keeper.unwritten() == []
        keeper.begin()
        keeper.take(caught_up=True)
        assert keeper.unwritten() == [(hold_key("a"), render_hold(hold(until=50)))]
        keeper.take(caught_up=True)
        assert keeper.unwritten() == []
        clock[0] = 50
        await asyncio.sleep(0.1)
        assert obeyed == [{"a"}, frozenset()], "its own clock ends it"
        assert keeper.status()["holds"] == []

    asyncio.run(work())
