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


# --- the forms that all read -----------------------------------------------------------------------------------------


def reads(*forms: str) -> SubscriptionRecord:
    return SubscriptionRecord(OWN, WALL, reads=forms)


def beat(roster: GroupMembers, ms: int = SILENT_AFTER, begin: int = 0) -> Now:
    """This instance's own heartbeat comes back once a minute, for so long. The time of the last one."""
    for at in range(begin, begin + ms + 1, 60_000):
        roster.hear("me", reads("rc2"), later(at), live=True)
    return later(begin + ms)


def test_a_form_is_read_by_all_once_the_own_heartbeats_came_back_for_three_minutes_and_while_they_come() -> None:
    """Given a topic that gives no heartbeat back, then an older instance may live unseen."""
    roster = GroupMembers("me", OWN)
    assert not roster.all_read("rc2", START)
    roster.hear("me", reads("rc2"), START, live=False)  # of a process before this one
    assert not roster.all_read("rc2", START)
    beat(roster)
    assert not roster.all_read("rc2", later(SILENT_AFTER - 1)), "one that lives may not have written yet"
    assert roster.all_read("rc2", later(SILENT_AFTER))
    assert roster.all_read("rc2", later(2 * SILENT_AFTER - 1))
    assert not roster.all_read("rc2", later(2 * SILENT_AFTER))
    roster.hear("me", reads("rc2"), later(2 * SILENT_AFTER), live=True)
    assert not roster.all_read("rc2", later(2 * SILENT_AFTER)), "there was a break"
    assert roster.all_read("rc2", beat(roster, begin=2 * SILENT_AFTER))


@pytest.mark.parametrize("behind", [0, 100_000, 240_000, 86_400_000])
def test_an_older_instance_that_lives_is_seen_in_time_whatever_its_clock_says(behind: int) -> None:
    """Given its last heartbeat from before we came, then it does not count as gone for the time that it names."""
    roster = GroupMembers("me", OWN)
    roster.hear("old", told("A||B", WALL - behind), START, live=False)
    for at in range(0, 3 * SILENT_AFTER, 10_000):
        if at % 60_000 == 0:
            roster.hear("me", reads("rc2"), later(at), live=True)
        if at % 60_000 == 50_000:
            roster.hear("old", told("A||B", WALL - behind + at), later(at), live=True)
        assert not roster.all_read("rc2", later(at))


@pytest.mark.parametrize("old", [told("A||B"), reads(), reads("other")])
def test_one_instance_that_does_not_say_it_is_enough_until_it_leaves_or_is_silent(old: SubscriptionRecord) -> None:
    roster = GroupMembers("me", OWN)
    end = beat(roster)
    roster.hear("old", old, end, live=True)
    roster.hear("new", reads("rc2"), end, live=True)
    assert not roster.all_read("rc2", end)
    beat(roster, begin=SILENT_AFTER)
    assert roster.all_read("rc2", later(2 * SILENT_AFTER)), "it was silent for three minutes"
    roster.hear("old", old, later(2 * SILENT_AFTER), live=True)
    roster.hear("old", None, later(2 * SILENT_AFTER), live=True)
    assert roster.all_read("rc2", later(2 * SILENT_AFTER))


def test_more_instances_than_are_kept_may_hide_an_older_one_only_for_as_long_as_they_may_live() -> None:
    roster = GroupMembers("me", OWN)
    end = beat(roster)
    for number in range(MOST + 1):
        roster.hear(f"i{number}", reads("rc2"), end, live=True)
    beat(roster, begin=SILENT_AFTER)
    assert not roster.all_read("rc2", later(2 * SILENT_AFTER - 1))
    assert roster.all_read("rc2", later(2 * SILENT_AFTER))


def test_a_record_that_cannot_be_read_may_be_of_an_older_instance() -> None:
    roster = GroupMembers("me", OWN)
    end = beat(roster)
    roster.miss(end)
    assert not roster.all_read("rc2", end)
    beat(roster, begin=SILENT_AFTER)
    assert roster.all_read("rc2", later(2 * SILENT_AFTER))
