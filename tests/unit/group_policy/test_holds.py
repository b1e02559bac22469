"""Which holds are in force, in which order, and what is written again to a policy topic that was recreated."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.hold_keeper import HoldKeeper
from reconsume.sidecar.group_policy.operations import HoldsChanged, has_confirmed
from reconsume.sidecar.group_policy.state import (
    MOST_IGNORED,
    MOST_KEPT,
    MOST_OBEYED,
    ControlState,
    HoldsHeard,
    HoldsInForce,
)
from reconsume.topics.hold_record import LONGEST_HOLD_MS, MOST_HOLDS, HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import ObeysTold

HOUR = 3_600_000


def hold(until: int = HOUR, **more: object) -> HoldRecord:
    return HoldRecord(0, until, "because", "ann", all=True, **more)  # type: ignore[arg-type]


OVER = hold(released_by="bob", released_at=5)


@pytest.fixture
def heard() -> HoldsHeard:
    return HoldsHeard(0)


def test_a_hold_is_in_force_until_its_end_or_its_release_or_until_it_is_deleted(heard: HoldsHeard) -> None:
    for ident in ("ends", "released", "deleted"):
        heard.add(ident, hold(), 0)
    assert list(heard.in_force(0).records) == ["ends", "released", "deleted"]
    heard.add("released", OVER, 10)
    heard.add("deleted", None, 10)
    assert list(heard.in_force(HOUR - 1).records) == ["ends"]
    assert not heard.in_force(HOUR).records
    heard.add("released", hold(), 20)
    assert list(heard.in_force(20).records) == ["ends", "released"], "the last record counts"


def test_the_first_hundred_are_in_force_and_the_next_follows_when_one_ends(heard: HoldsHeard) -> None:
    for number in range(MOST_HOLDS + 5):
        heard.add(f"h{number}", hold(), 0)
    assert len(heard.in_force(0).records) == MOST_HOLDS
    assert heard.in_force(0).ignored == ("5 holds left out: 100 are in force at a time",)
    heard.add("h3", replace(hold(), why="another"), 0)
    assert list(heard.in_force(0).records)[3] == "h3", "one that is said again keeps its turn"
    heard.add("h0", OVER, 0)
    assert list(heard.in_force(0).records)[-1] == "h100"


def test_a_flood_takes_no_memory_and_is_named(heard: HoldsHeard) -> None:
    for number in range(10_000):
        heard.add(f"h{number}", hold(), 0)
    assert len(heard.live) == MOST_KEPT
    assert len(heard.ignored(0)) == MOST_IGNORED
    assert "are known already" in heard.ignored(0)[-1]
    assert heard.in_force(HOUR) == HoldsInForce({}), "neither is named when it is over"


def test_released_holds_take_no_room(heard: HoldsHeard) -> None:
    """Given more holds than are kept, begun for a week and released, then the next hold is obeyed."""
    long = hold(LONGEST_HOLD_MS)
    for number in range(MOST_KEPT + 10):
        heard.add(f"h{number}", long, 0)
        heard.add(f"h{number}", replace(long, released_by="bob"), 0)
    heard.add("next", hold(), 0)
    assert list(heard.in_force(0).records) == ["next"]
    assert len(heard.released) == MOST_KEPT


def test_what_ends_too_late_is_ignored_whatever_its_own_clock_says(heard: HoldsHeard) -> None:
    heard.add("far", HoldRecord(10**13, 10**13 + 1, "x", "ann", all=True), 0)
    assert not heard.in_force(0).records
    assert "would last more than 7 d" in heard.ignored(0)[0]
    heard.add("far", None, 0)
    assert heard.ignored(0) == []


@pytest.mark.parametrize(
    ("obeys", "of_hold", "of_release"),
    [
        (None, False, False),
        (ObeysTold(7, ("a",)), False, False),
        (ObeysTold(8, ("a", "b")), True, False),
        (ObeysTold(9, ("b",)), False, True),
    ],
    ids=["says nothing", "has not read so far", "obeys it", "does not obey it"],
)
def test_an_instance_confirms_by_what_it_obeys_and_how_far_it_has_read(
    obeys: ObeysTold | None, of_hold: bool, of_release: bool
) -> None:
    lasting = hold(2**62)
    for record, expected in ((lasting, of_hold), (replace(lasting, released_by="bob"), of_release)):
        assert has_confirmed(obeys, HoldsChanged({"a": record}, 7, ControlState(), frozenset())) is expected
    assert has_confirmed(ObeysTold(8), HoldsChanged({"a": hold(1)}, 7, ControlState(), frozenset())), "it is over"


def test_the_ids_in_a_heartbeat_are_bounded() -> None:
    ours = HoldsInForce({f"{number:08x}": hold() for number in range(MOST_HOLDS)})
    assert len(ours.some_ids()) == MOST_HOLDS
    forged = HoldsInForce({"x" * 60 + str(number): hold() for number in range(MOST_HOLDS)})
    assert len("".join(forged.some_ids())) < MOST_OBEYED


class Kept:
    """A keeper with a clock of its own, and what it has the lanes obey."""

    def __init__(self) -> None:
        self.clock, self.obeyed, self.heard = 0, list[frozenset[str]](), HoldsHeard(0)
        self.keeper = HoldKeeper(self._obey, lambda: Now(self.clock, self.clock))
        self.begin()

    def _obey(self, holds: Holds) -> None:
        self.obeyed.append(holds.ids)

    def begin(self) -> None:
        self.heard = HoldsHeard(0)
        self.keeper.begin(self.heard)

    def hear(self, ident: str, record: HoldRecord | None) -> None:
        self.heard.add(ident, record, self.clock)
        self.keeper.hear(ident, record)
        self.keeper.take(caught_up=True)


def written(**records: HoldRecord) -> list[tuple[bytes, bytes]]:
    return [(hold_key(ident), render_hold(record)) for ident, record in records.items()]


def test_the_keeper_obeys_each_change_once_and_its_own_clock_ends_a_hold() -> None:
    async def work() -> None:
        kept = Kept()
        kept.hear("a", hold(until=50))
        kept.keeper.take(caught_up=True)
        assert kept.obeyed == [{"a"}]
        assert kept.keeper.unwritten() == []
        kept.clock = 50
        await asyncio.sleep(0.1)
        assert kept.obeyed == [{"a"}, frozenset()]
        assert kept.keeper.status()["holds"] == []

    asyncio.run(work())


def test_a_recreated_topic_gets_holds_and_releases_again_each_once() -> None:
    async def work() -> None:
        kept = Kept()
        for ident, record in (("known", hold()), ("gone", hold()), ("gone", OVER), ("other", hold())):
            kept.hear(ident, record)
        kept.begin()
        kept.heard.add("other", OVER, 0)
        kept.keeper.hear("other", OVER)
        kept.keeper.take(caught_up=False)
        assert kept.obeyed[-1] == {"known"}, "what the log has not said yet stays in force"
        kept.keeper.take(caught_up=True)
        assert kept.keeper.unwritten() == written(gone=OVER, known=hold())
        kept.keeper.take(caught_up=True)
        assert kept.keeper.unwritten() == []
        kept.hear("gone", hold())  # by an instance that was frozen, and does not know of the release
        assert kept.keeper.unwritten() == written(gone=OVER)
        kept.hear("gone", OVER)
        assert (kept.keeper.unwritten(), kept.obeyed[-1]) == ([], {"known"})

    asyncio.run(work())


def test_a_release_that_a_frozen_instance_overwrites_is_written_again() -> None:
    async def work() -> None:
        kept = Kept()
        for record in (hold(), OVER, hold()):
            kept.hear("a", record)
        assert kept.keeper.unwritten() == written(a=OVER)

    asyncio.run(work())
