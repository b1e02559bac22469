"""Who wants other records: seen while it lasts, forgotten with whoever is silent."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.heartbeat_reader import MOST, MOST_SIGNS, SILENT_AFTER, GroupMembers
from reconsume.topics.policy_record import SubscriptionRecord

WALL = 1_763_690_000_000
START = Now(WALL, 1_000)
OWN = {"orders": "A||B"}


def told(tags: str, at: int = WALL) -> SubscriptionRecord:
    return SubscriptionRecord({"orders": tags}, at)


def later(ms: int) -> Now:
    return Now(WALL + ms, 1_000 + ms)


def test_only_those_that_want_something_else_differ() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("same", told("B || A"), START, live=True)
    roster.hear("other", told("A"), START, live=True)
    roster.hear("me", told("C"), START, live=True)  # of a process before this one
    assert roster.differing(START) == {"other": {"orders": "A"}}


def test_it_is_over_when_they_agree_or_one_leaves() -> None:
    roster = GroupMembers("me", OWN)
    for name in ("mended", "gone"):
        roster.hear(name, told("A"), START, live=True)
    roster.hear("mended", told("A||B"), START, live=True)
    roster.hear("gone", None, START, live=True)
    assert roster.differing(START) == {}


def test_an_instance_that_is_silent_for_three_minutes_does_not_count() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("dead", told("A"), START, live=True)
    roster.hear("alive", told("A"), START, live=True)
    roster.hear("alive", told("A"), later(60_000), live=True)
    assert set(roster.differing(later(SILENT_AFTER - 1))) == {"dead", "alive"}
    assert set(roster.differing(later(SILENT_AFTER))) == {"alive"}


def test_what_was_told_before_we_came_is_as_old_as_its_clock_says() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("old", told("A", WALL - SILENT_AFTER), START, live=False)
    roster.hear("young", told("A", WALL - SILENT_AFTER + 5), START, live=False)
    roster.hear("ahead", told("A", WALL + 999_999_999), START, live=False)
    assert set(roster.differing(START)) == {"young", "ahead"}
    assert roster.differing(later(SILENT_AFTER)) == {}


def test_live_a_wrong_clock_does_not_matter() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("slow clock", told("A", 0), START, live=True)
    assert set(roster.differing(START)) == {"slow clock"}


def test_the_number_of_instances_is_bounded() -> None:
    roster = GroupMembers("me", OWN)
    for number in range(MOST + 10):
        roster.hear(f"x{number}", told("A"), START, live=True)
    assert len(roster.differing(START)) == MOST


def test_what_they_subscribe_to_is_bounded_as_a_whole_and_room_that_is_free_again_is_used() -> None:
    """Given more long subscriptions than are kept, then those like ours still count, and one that ends makes room."""
    roster = GroupMembers("me", OWN)
    long = {f"topic-{number}": "A" for number in range(4_000)}
    size = sum(len(topic) + 1 for topic in long)
    for number in range(2 * MOST_SIGNS // size):
        roster.hear(f"x{number}", SubscriptionRecord(long, WALL), START, live=True)
    roster.hear("same", told("A||B"), START, live=True)
    assert len(roster.differing(START)) == MOST_SIGNS // size
    roster.hear("x0", None, START, live=True)
    roster.hear("other", told("A"), START, live=True)
    assert "other" in roster.differing(START)


def heartbeat(well: bool | None) -> SubscriptionRecord:
    """As an instance writes it; None: one of a version without `well`."""
    return told("A||B") if well is None else SubscriptionRecord(OWN, WALL, well=well)


@pytest.mark.parametrize("well", [True, None])
def test_another_is_well_since_we_are_not_only_if_its_heartbeat_stands_behind_ours(well: bool | None) -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("other", heartbeat(well), START, live=True)
    assert roster.others(START) == Others(any_well=True, well_behind_ours=False), "we are well"
    roster.hear("me", heartbeat(False), START, live=True)
    assert roster.others(START) == Others(any_well=True, well_behind_ours=False)
    roster.hear("other", heartbeat(well), START, live=True)
    assert roster.others(START) == Others(any_well=True, well_behind_ours=True)
    roster.hear("me", heartbeat(False), START, live=True)  # the next minute's
    assert roster.others(START).well_behind_ours
    assert roster.others(later(SILENT_AFTER)) == Others(), "it is silent"
    roster.hear("other", heartbeat(False), START, live=True)
    assert roster.others(START) == Others()


def test_what_a_process_before_this_one_has_said_is_no_word_of_ours() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("me", heartbeat(False), START, live=False)
    roster.hear("other", heartbeat(True), START, live=False)
    assert not roster.others(START).well_behind_ours


def test_when_we_are_well_again_an_earlier_not_well_counts_no_more() -> None:
    roster = GroupMembers("me", OWN)
    roster.hear("me", heartbeat(False), START, live=True)
    roster.hear("me", heartbeat(True), START, live=True)
    roster.hear("other", heartbeat(True), START, live=True)
    assert not roster.others(START).well_behind_ours
