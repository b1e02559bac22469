"""Levels of main topics that left the configuration: recognised by their exact names, and never another group's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.names import Names
from reconsume.topics.removed import removed_levels, removed_role, removed_topics

BILLING = Names("billing", "{topic}-{group}")
B = Names("b", "{topic}-{group}")
A_B = Names("a-b", "{topic}-{group}")
MAINS = ("orders",)
NAME = st.from_regex(r"[a-z]{1,3}(-[a-z]{1,3}){0,3}", fullmatch=True)


@pytest.mark.parametrize(
    "name",
    [
        "orders-billing-RETRY-10s",  # a topic that is still configured
        "billing-RETRY-10s",  # the other prefix
        "-billing-RETRY-10s",
        "old-billing-RETRY-60s",  # not our spelling of 1m
        "old-billing-RETRY-0s",
        "old-billing-RETRY-",
        "old-billing-RETRY",
        "old-billing-RETRY-10s-2",
        "old-billing-RETRY-10S",
        "old-billing-retry-10s",
        "old-billing-DLQ",
        "old-mybilling-RETRY-10s",
        "old.billing-RETRY-10s",
        "oldbilling-RETRY-10s",
        "old-billing-x-RETRY-10s",
        "old-billing-RETRY-EVENTS",
        "billing-RETRY-billing-RETRY-10s",  # the group's ready topic is no main topic
    ],
)
def test_a_name_that_only_looks_like_it_is_none(name: str) -> None:
    assert removed_role(BILLING, name, MAINS) is None
    assert removed_levels(BILLING, MAINS, [name]) == ()


def test_with_one_prefix_for_the_group_no_level_belongs_to_a_topic() -> None:
    assert removed_levels(Names("billing"), MAINS, ["old-billing-RETRY-10s"]) == ()


@pytest.mark.parametrize(
    ("names", "level", "topic", "there", "others"),
    [
        (B, "a-b-RETRY-1s", "a", (), ()),
        (B, "a-b-RETRY-1s", "a", ("b-RETRY", "b-RETRY-EVENTS"), ()),
        (B, "a-b-RETRY-1s", "a", ("a-b-RETRY",), ("a-b",)),  # a level of the group a-b, prefix {group}
        (B, "a-b-RETRY-1s", "a", ("a-b-RETRY-EVENTS",), ("a-b",)),
        (B, "a-b-RETRY-1s", "a", ("a-b-RETRY-POLICY",), ("a-b",)),
        (B, "a-b-RETRY-1s", "a", ("a-b", "a-b-DLQ", "xa-b-RETRY", "a-b-RETRY-5s"), ()),  # no sign of a group a-b
        (B, "x-a-b-RETRY-1s", "x-a", ("a-b-RETRY",), ("a-b",)),  # topic x of the group a-b
        (B, "x-a-b-RETRY-1s", "x-a", ("x-a-b-RETRY", "a-b-RETRY"), ("x-a-b", "a-b")),
        (A_B, "x-a-b-RETRY-1s", "x", ("b-RETRY",), ("b",)),  # topic x-a of the group b
        (A_B, "x-a-b-RETRY-1s", "x", ("a-b-RETRY",), ()),
        (B, "b-b-RETRY-1s", "b", ("b-RETRY",), ()),  # a topic that is called as the group
        (B, "b-b-RETRY-1s", "b", ("b-b-RETRY",), ("b-b",)),
        (B, "a--b-RETRY-1s", "a-", ("-b-RETRY",), ("-b",)),
        (B, "a-RETRY-1s-b-RETRY-1s", "a-RETRY-1s", (), ()),
    ],
)
def test_a_name_that_another_group_may_have_given_names_that_group(
    names: Names, level: str, topic: str, there: tuple[str, ...], others: tuple[str, ...]
) -> None:
    [found] = [one for one in removed_levels(names, MAINS, {*there, level}) if one.name == level]
    assert (found.topic, found.delay, found.others) == (topic, 1_000, others)


@given(NAME, NAME, st.sampled_from(["{group}", "{topic}-{group}"]), NAME, st.sampled_from([1_000, 60_000, 7_200_000]))
def test_no_level_of_another_group_is_taken_for_a_certain_one(
    group: str, other: str, template: str, topic: str, delay: int
) -> None:
    """Given any two groups, each with its ready topic, then whatever level one has, the other is not sure of it."""
    theirs = Names(other, template)
    level = theirs.level(delay, topic)
    there = {level, theirs.ready, Names(group).ready}
    found = removed_levels(Names(group, "{topic}-{group}"), ("main",), there)
    assert all(other in one.others for one in found if one.name == level and group != other)


@given(NAME, NAME, st.sampled_from([1_000, 5_000, 3_600_000]))
def test_every_level_of_a_removed_topic_leads_back_to_it(group: str, topic: str, delay: int) -> None:
    names = Names(group, "{topic}-{group}")
    level = names.level(delay, topic)
    [found] = removed_levels(names, ("main",), [level])
    assert (found.name, found.topic, found.delay) == (level, topic, delay)
    assert removed_topics(names, [level, names.level(delay, "main")], ("main",)) == [topic]
