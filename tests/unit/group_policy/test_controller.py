"""What the desk makes of news: which values are in force, which are refused and why, and which levels are read on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.controller import FollowedLog
from reconsume.sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from reconsume.sidecar.group_policy.levels import Undrained
from reconsume.sidecar.group_policy.settings_keeper import OwnSettings
from reconsume.sidecar.settings.group_policy import levels_of
from reconsume.topics.agreement import SettingsHeard, SettingsRecord, digest_of
from reconsume.topics.hold_record import HoldHeard, HoldRecord
from reconsume.topics.policy_record import (
    BadRecord,
    InstanceHeard,
    ObeysTold,
    PolicyHeard,
    SubscriptionRecord,
    parse_record,
)
from tests.support.control_log import said
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
        await asyncio.wait_for(seen.desk.start.wait_known(), 1)
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
        await asyncio.wait_for(seen.desk.start.wait_known(), 1)

    async def strict(seen: Seen) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.desk.start.wait_known(), 0.3)
        await seen.begin()
        await asyncio.wait_for(seen.desk.start.wait_known(), 1)

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
        await seen.desk.start.wait_known()
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
            await asyncio.wait_for(seen.desk.start.wait_known(), 0.1)

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


def test_differing_instances_are_said_once_until_they_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin(instance("me", "*"))
        for _ in range(3):
            await seen.tell(instance("other", "A"))
        assert seen.desk.instances_differ()
        status: Any = seen.desk.status()
        (row,) = status["instances_differ"]
        assert (row["key"], row["applies"]) == ("tags", None)
        assert {value["value"]: value["instances"] for value in row["values"]} == {
            "orders (A)": ["other"],
            "orders": ["me"],
        }
        await seen.tell(instance("other", "*"))
        assert not seen.desk.instances_differ()

    def instance(name: str, tags: str) -> InstanceHeard:
        return InstanceHeard(name, SubscriptionRecord({"orders": tags}, 1))

    with caplog.at_level(logging.INFO):
        run(good(tmp_path, *SETS), work)
    warning, over = [record.getMessage() for record in caplog.records]
    assert "tags is orders at me and orders (A) at other: each goes by its own; give all of them one" in warning
    assert over == "all instances of the group agree again"


# --- the settings of the other instances -----------------------------------------------------------------------------


def configured(rank: int, **values: object) -> SettingsHeard:
    record = SettingsRecord({**AGREED, **values}, rank)
    return SettingsHeard(digest_of(record.values), record)


def with_settings(name: str, settings: SettingsHeard) -> InstanceHeard:
    return InstanceHeard(name, SubscriptionRecord({"orders": "*"}, 1, settings=settings.digest))


AGREED: dict[str, object] = {
    "max_reconsume_times": 16, "ladder": ["1s"], "levels": ["1s", "5s"], "rules": [], "max_age": None, "jitter": "0%",
    "ordered_interval": "1s", "ordered_max_times": None, "ordered_ladder": None, "ordered_exhausted": "dead-letter",
    "nack_redelivery_delay": "1m", "max_deaths": 3, "group_rate": None,
}  # fmt: skip


def test_the_newest_settings_among_the_live_instances_apply_and_a_rollback_takes_effect(tmp_path: Path) -> None:
    """Given an old pod and one of newer settings, then those apply until the new pod is gone; a restart changes
    nothing."""
    old, new = configured(1, max_deaths=1), configured(2, max_deaths=2)

    async def work(seen: Seen) -> None:
        def applied() -> int:
            return seen.desk.settings.retry.max_deaths

        await seen.begin(old, with_settings("pod-0", old))
        assert applied() == 1
        await seen.tell(new, with_settings("pod-1", new))
        assert applied() == 2
        assert seen.desk.policy()["settings"] == new.digest
        await seen.tell(InstanceHeard("pod-0", None))
        await seen.tell(old, with_settings("pod-0", old))
        assert applied() == 2
        await seen.tell(InstanceHeard("pod-1", None))
        assert applied() == 1
        await seen.tell(InstanceHeard("pod-0", None))
        assert applied() == 3, "nobody else is there"

    run(good(tmp_path, *SETS), work)


def test_a_policy_applies_over_the_settings_of_instances_key_by_key(tmp_path: Path) -> None:
    newest = configured(5, max_deaths=2, max_reconsume_times=7)

    async def work(seen: Seen) -> None:
        await seen.begin(newest, with_settings("pod-1", newest), policy(max_deaths=9))
        assert (seen.desk.settings.retry.max_deaths, seen.desk.settings.retry.max_reconsume_times) == (9, 7)
        origins = seen.desk.policy()["origins"]
        assert isinstance(origins, dict)
        assert (origins["max_deaths"], origins["max_reconsume_times"], origins["timeout"]) == (
            "policy",
            "instances",
            "default",
        )
        await seen.tell(policy(ladder="steep"))
        assert (seen.desk.settings.retry.max_deaths, len(seen.desk.refused)) == (9, 1)

    run(good(tmp_path, *SETS), work)


@pytest.mark.parametrize("mode", ["own", "strict"])
def test_an_instance_of_its_own_neither_follows_nor_is_followed(tmp_path: Path, mode: str) -> None:
    newest = configured(5, max_deaths=2)

    async def work(seen: Seen) -> None:
        await seen.begin(newest, with_settings("pod-1", newest), policy(max_reconsume_times=16))
        assert seen.desk.settings.retry.max_deaths == 3
        assert seen.desk._log.own.digest == ""
        assert not list(seen.desk.unwritten())

    run(good(tmp_path, *SETS, f"policy_mode={mode}"), work)


def test_settings_that_cannot_be_applied_are_skipped_and_named_until_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given newer settings whose level is missing, then the older ones apply, the topics are looked at again soon, and
    once the level is there the newer ones apply."""
    old, new = configured(1, max_deaths=1), configured(2, max_deaths=2, levels=["1s", "3s"])

    async def work(seen: Seen) -> None:
        await seen.begin(old, with_settings("pod-0", old))
        await seen.tell(new, with_settings("pod-1", new))
        assert seen.desk.doubts()
        await seen.miss()
        assert seen.desk.settings.retry.max_deaths == 1
        assert seen.desk.hurried()
        assert seen.desk.awaited() == {NEW}
        shown: Any = seen.desk.policy()
        (refused,) = shown["settings_refused"]
        assert refused["settings"] == new.digest
        await seen.look(there=[*LEVELS, NEW])
        assert seen.desk.settings.retry.max_deaths == 2
        assert seen.desk.policy()["settings_refused"] == []

    with caplog.at_level(logging.ERROR):
        run(good(tmp_path, *SETS), work)
    (line,) = caplog.records
    assert line.__dict__["event"] == "settings-refused"


def test_an_instance_whose_heartbeats_do_not_come_back_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a log without a heartbeat of this instance, then it is named after three minutes, until one comes back."""
    clock = [0]
    log = FollowedLog("me", OwnSettings(good(tmp_path)), lambda: Now(10**9 + clock[0], clock[0]))
    for clock[0] in range(0, 400_000, 20_000):
        log.look_for_own()
    assert [record.__dict__["event"] for record in caplog.records] == ["heartbeat-missing"]
    for record in said(InstanceHeard("me", SubscriptionRecord({}, 1)), at=10**9 + clock[0]):
        log.hear(record, live=True)
    log.look_for_own()
    assert len(caplog.records) == 1


def test_the_log_gets_the_own_settings_once_if_it_lacks_them_with_the_rank_that_they_had(tmp_path: Path) -> None:
    other = configured(6, max_deaths=2)

    async def work(seen: Seen) -> None:
        await seen.begin(other)
        ((key, value),) = seen.desk.unwritten()
        parsed = parse_record(key, value)
        assert isinstance(parsed, SettingsHeard)
        assert parsed.record is not None
        assert (parsed.digest, parsed.record.rank) == (seen.desk._log.own.digest, 7)
        await seen.tell(parsed)
        assert not list(seen.desk.unwritten())
        seen.desk.on_update(PolicyUpdate((), None, caught_up=True, live=False, begun=True))
        await asyncio.sleep(0)
        assert seen.desk.unwritten() == [(key, value)], "the topic was recreated"

    run(good(tmp_path, *SETS), work)


def test_another_ladder_over_a_list_of_levels_needs_no_other_topic(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(policy(ladder=["3s", "1h"], max_deaths=9))
        assert (seen.desk.settings.retry.max_deaths, seen.desk.refused) == (9, ())

    run(good(tmp_path, *SETS), work)


def test_the_levels_of_settings_are_the_ladders_or_the_lists(tmp_path: Path) -> None:
    assert levels_of(good(tmp_path, "retry.ladder=[3s]", "retry.levels=[1s, 5s]")) == set(LEVELS)
    assert levels_of(good(tmp_path, "retry.ladder=[3s]")) == {NEW}
