"""What the desk makes of news: which values are in force, which are refused and why, and which levels are read on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.follower import TopicSnapshot
from reconsume.sidecar.group_policy.levels import Undrained
from reconsume.sidecar.settings.group_policy import levels_of
from reconsume.topics.hold_record import HoldHeard, HoldRecord
from reconsume.topics.policy_record import BadRecord, InstanceHeard, ObeysTold, PolicyHeard, SubscriptionRecord
from tests.support.sidecar.policy_desk import LEVELS, SETS, Seen, policy, run
from tests.support.sidecar.settings import good

NEW = "billing-RETRY-3s"


def test_the_last_of_many_old_policies_is_taken_once(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.look()
        for times in range(5):
            await seen.tell(policy(max_reconsume_times=times), caught_up=False, live=False)
        assert seen.desk.settings.retry.max_reconsume_times == 16
        await seen.tell(policy(max_reconsume_times=5), live=False)
        await asyncio.wait_for(seen.desk.wait_known(), 1)
        assert next(settings.retry.max_reconsume_times for settings, _ in seen.applied) == 5
        shown = seen.desk.policy()
        assert (shown["who"], shown["at"]) == ("ann", 5)
        await seen.tell(PolicyHeard(None))
        assert seen.desk.settings.retry.max_reconsume_times == 16
        assert seen.desk.policy()["who"] is None

    run(good(tmp_path, *SETS), work)


def test_it_says_what_it_obeys_once_it_has_read_the_log(tmp_path: Path) -> None:
    """Given a policy that is refused and a hold, then it names the policy before it, the hold, and how far it read."""
    hold = HoldRecord(wall(), wall() + 3_600_000, "x", "ann", all=True)

    async def work(seen: Seen) -> None:
        await seen.tell(policy(max_deaths=5), caught_up=False, live=False)
        assert seen.desk.obeys is None
        await seen.begin(InstanceHeard("other", None))
        assert seen.desk.obeys == ObeysTold(1, (), 0)
        await seen.tell(policy(ladder="steep"), HoldHeard("h", hold), InstanceHeard("other", None))
        assert seen.desk.obeys == ObeysTold(4, ("h",), 0)
        await seen.tell(PolicyHeard(None), HoldHeard("h", None))
        assert seen.desk.obeys == ObeysTold(7, (), None)

    run(good(tmp_path, *SETS), work)


def test_the_lanes_wait_for_the_policy_and_not_for_ever(tmp_path: Path) -> None:
    async def lenient(seen: Seen) -> None:
        await asyncio.wait_for(seen.desk.wait_known(), 1)

    async def strict(seen: Seen) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.desk.wait_known(), 0.3)
        await seen.begin()
        await asyncio.wait_for(seen.desk.wait_known(), 1)

    run(good(tmp_path, *SETS), lenient)
    run(good(tmp_path, *SETS, "policy_mode=strict"), strict)


def test_a_policy_that_cannot_be_built_changes_nothing_and_is_shown(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin(policy(max_deaths=5))
        await seen.tell(policy(max_deaths=6, ladder="steep"))
        assert seen.desk.settings.retry.max_deaths == 5
        (problem,) = seen.desk.refused
        assert problem.startswith("retry.ladder = steep: must be rocketmq")
        assert seen.desk.policy()["refused"] == [problem]
        assert seen.desk.hurried()
        await seen.tell(policy(max_deaths=7))
        assert (seen.desk.settings.retry.max_deaths, seen.desk.refused) == (7, ())
        assert not seen.desk.hurried()

    run(good(tmp_path, *SETS), work)


def test_a_policy_waits_for_its_level_topics_as_a_whole(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(policy(levels=["1s", "3s", "5s"], max_deaths=9))
        assert seen.desk.settings.retry.max_deaths == 3
        await seen.miss()
        assert NEW in seen.desk.refused[0]
        assert seen.desk.awaited() == {NEW}
        await seen.look(there=[*LEVELS, NEW])
        assert (seen.desk.settings.retry.max_deaths, seen.desk.refused) == (9, ())
        assert not seen.desk.awaited()

    run(good(tmp_path, *SETS), work)


@pytest.mark.parametrize("stale_looks", [0, 1])
def test_a_policy_whose_topics_were_created_just_before_is_applied_and_never_called_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stale_looks: int
) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(policy(levels=["1s", "3s", "5s"], max_deaths=9))
        for _ in range(stale_looks):
            await seen.look()
        assert (seen.desk.refused, seen.desk.doubts()) == ((), True)
        await seen.look(there=[*LEVELS, NEW])
        assert (seen.desk.settings.retry.max_deaths, seen.desk.doubts()) == (9, False)

    with caplog.at_level(logging.WARNING):
        run(good(tmp_path, *SETS), work)
    assert caplog.messages == []


def test_an_instance_that_starts_while_the_levels_of_its_policy_are_created_waits_for_them(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.look()
        await seen.tell(policy(levels=["1s", "3s", "5s"], max_deaths=9), live=False)
        assert (seen.applied, seen.desk.refusal) == ([], ())
        await seen.look(there=[*LEVELS, NEW], caught_up=True)
        await seen.desk.wait_known()
        assert seen.desk.settings.retry.levels == (1_000, 3_000, 5_000)

    run(good(tmp_path, *SETS), work)


def test_a_ladder_that_keeps_the_order_waits_for_its_queue_topics(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(policy(ordered_ladder=["1m"], ordered_exhausted="park"))
        assert not seen.desk.settings.queued
        await seen.miss()
        assert (
            "its queue topics are missing, or not for this user to see: billing-ORDERED-orders; create them: "
            in seen.desk.refused[0]
        )
        assert "--set 'retry.ordered_ladder=[1m]'" in seen.desk.refused[0]
        assert seen.desk.awaited() == {"billing-ORDERED-orders"}
        await seen.look(there=[*LEVELS, "billing-ORDERED-orders"])
        assert seen.desk.refused == ()
        assert (seen.desk.settings.queued, seen.desk.settings.retry.ordered_exhausted) == (True, "park")
        await seen.tell(policy(ordered_ladder=["1m"], ordered_max_times=3))
        assert "retry.ordered_max_times" in seen.desk.refused[0]
        await seen.tell(policy(ordered_exhausted="park"))
        assert "retry.ordered_exhausted" in seen.desk.refused[0]
        await seen.tell(policy(ordered_ladder=None))
        assert (seen.desk.settings.queued, seen.desk.refused) == (False, ())

    run(good(tmp_path, *SETS, "deliver.order=key"), work)


def test_levels_that_the_configuration_needs_and_misses_are_no_reason_against_another_value(tmp_path: Path) -> None:
    """They hold their records as ever; the policy did not ask for them."""

    async def work(seen: Seen) -> None:
        await seen.begin(policy(max_deaths=9), there=[])
        assert seen.desk.settings.retry.max_deaths == 9

    run(good(tmp_path, *SETS), work)


def test_a_level_that_leaves_the_policy_is_read_until_a_later_look_finds_it_empty(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        old = seen.desk.wanted()
        await seen.tell(policy(levels=["1s"]))
        assert seen.left == {LEVELS[1]}
        assert seen.desk.hurried()
        before = TopicSnapshot(frozenset(LEVELS), old, Undrained(frozenset(), frozenset()))
        await seen.tell(look=before, caught_up=False)
        assert seen.left == {LEVELS[1]}
        await seen.look(unknown=[LEVELS[1]])
        assert seen.left == {LEVELS[1]}
        await seen.look(LEVELS[1])
        assert seen.left == {LEVELS[1]}
        await seen.look()
        assert seen.left == frozenset()
        await seen.look(LEVELS[1])  # an instance of the old policy wrote to it afterwards
        assert seen.left == {LEVELS[1]}

    run(good(tmp_path, *SETS), work)


def test_at_the_start_all_levels_are_looked_at_and_only_those_that_hold_something_are_read(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        assert seen.desk.wanted() == frozenset()
        there = [*LEVELS, "billing-RETRY-9s", "billing-RETRY-8s"]
        await seen.begin(policy(levels=["1s"]), left=[*LEVELS, "billing-RETRY-9s"], there=there)
        assert seen.left == {LEVELS[1], "billing-RETRY-9s"}
        assert seen.desk.wanted() == {LEVELS[0]}

    run(good(tmp_path, *SETS), work)


def test_a_level_whose_leader_does_not_answer_holds_up_no_other(tmp_path: Path) -> None:
    """Given two removed levels, one of which nobody says anything: the other is read, and left when it is empty."""

    async def work(seen: Seen) -> None:
        there = [*LEVELS, "billing-RETRY-9s", "billing-RETRY-8s"]
        await seen.begin(there=there)
        await seen.look("billing-RETRY-9s", there=there, unknown=["billing-RETRY-8s"])
        assert seen.left == {"billing-RETRY-9s"}
        assert seen.desk.hurried()
        await seen.look(there=there, unknown=["billing-RETRY-8s"])
        assert seen.left == frozenset()
        await seen.look("billing-RETRY-8s", there=there)
        await seen.look(there=there, unknown=["billing-RETRY-8s"])
        assert seen.left == {"billing-RETRY-8s"}, "what is not known stays as it was"

    run(good(tmp_path, *SETS), work)


def test_without_kafkas_word_which_levels_hold_something_it_is_asked_again_soon(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.look(unknown=LEVELS)
        await seen.tell(live=False)
        assert seen.desk.hurried()
        await seen.look()
        assert not seen.desk.hurried()

    run(good(tmp_path, *SETS), work)


def test_strict_refuses_at_the_start_and_keeps_its_own_later(tmp_path: Path) -> None:
    strict = good(tmp_path, *SETS, "policy_mode=strict")

    async def at_start(seen: Seen) -> None:
        await seen.begin(policy(max_deaths=9))
        assert [problem.split(":")[0] for problem in seen.desk.refusal] == ["retry.max_deaths"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.desk.wait_known(), 0.1)

    async def later(seen: Seen) -> None:
        await seen.begin(policy(max_deaths=3))
        await seen.tell(policy(max_deaths=9))
        assert seen.desk.refusal == ()
        assert seen.desk.settings.retry.max_deaths == 3
        assert "the group's policy says 9" in seen.desk.refused[0]

    run(strict, at_start)
    run(strict, later)


def test_bad_records_are_counted_and_said_once_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin(policy(max_deaths=9), *[BadRecord(f"fault {number}") for number in range(300)])
        assert seen.desk.bad_records == 300
        assert seen.desk.settings.retry.max_deaths == 9

    with caplog.at_level(logging.WARNING):
        run(good(tmp_path, *SETS), work)
    assert [record.getMessage() for record in caplog.records] == [
        "ignored in the policy topic: 300 records; the first: fault 0"
    ]


def test_differing_subscriptions_are_said_once_until_they_agree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told(tags: str) -> InstanceHeard:
        return InstanceHeard("other", SubscriptionRecord({"orders": tags}, 1))

    async def work(seen: Seen) -> None:
        await seen.begin()
        for _ in range(3):
            await seen.tell(told("TagA"))
        assert seen.desk.subscriptions_differ()
        assert seen.desk.status()["subscriptions_differ"] == [{"instance": "other", "subscription": {"orders": "TagA"}}]
        await seen.tell(told("*"))
        assert not seen.desk.subscriptions_differ()

    with caplog.at_level(logging.INFO):
        run(good(tmp_path, *SETS), work)
    warning, over = [record.getMessage() for record in caplog.records]
    assert "here {orders: '*'}, other {orders: TagA}; give all of them the same topics and tags, or each" in warning
    assert over == "all instances want the same records again"


def test_another_ladder_over_a_list_of_levels_needs_no_other_topic(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(policy(ladder=["3s", "1h"], max_deaths=9))
        assert (seen.desk.settings.retry.max_deaths, seen.desk.refused) == (9, ())

    run(good(tmp_path, *SETS), work)


def test_the_levels_of_settings_are_the_ladders_or_the_lists(tmp_path: Path) -> None:
    assert levels_of(good(tmp_path, "retry.ladder=[3s]", "retry.levels=[1s, 5s]")) == set(LEVELS)
    assert levels_of(good(tmp_path, "retry.ladder=[3s]")) == {NEW}
