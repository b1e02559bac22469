"""One policy for every instance, live: changed by one record, followed by all, and nothing that waits is lost by it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import Result

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group, create_specs, specs_of
from tests.support.kafka.topic_io import dump, produce
from tests.support.proof.invariants import GRAIN
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import FAIL, OK, Answer, by_name
from tests.support.service.service import Service
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, SECONDS, follows, policy_of, set_policy, with_policy, write
from tests.support.sidecar.process import SidecarProcess

SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,)})
LATE = 3_000
"""ms that a retry may be late on a busy machine, and far less than the difference that is measured."""

Call = Callable[..., Result]


def differing(sidecar: SidecarProcess) -> Any:
    return sidecar.status()["instances_differ"]


def deliveries(service: Service, value: bytes) -> list[Delivery]:
    return [delivery for delivery in service.ledger.deliveries() if delivery.value == value]


@pytest.fixture
def policy(tmp_path: Any) -> Call:
    """`policy(group, "set", …)`: the command line with the configuration of the group's sidecars."""

    def call(group: GroupTopics, *words: str) -> Result:
        return for_group(tmp_path, group, "policy", *words)

    return call


def test_two_sidecars_follow_what_the_command_line_sets_within_seconds(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, policy: Call
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, CALM) for pod in ("pod-0", "pod-1")]
    assert policy_of(pods[0])["origins"]["max_reconsume_times"] == "file"
    result = policy(group, "set", "max_reconsume_times=0", "concurrency=7", "--yes", "--who", "ann")
    assert result.exit_code == 0, result.stderr
    for pod in pods:
        follows(pod, max_reconsume_times=0, concurrency=7)
        current = policy_of(pod)
        assert (current["who"], current["origins"]["max_reconsume_times"]) == ("ann", "policy")
        assert current["was"] == {"max_reconsume_times": 2, "concurrency": "auto"}
        assert pod.status()["policy"]["refused"] == []
    produce(group.bootstrap, group.main, [b"poison:%d" % number for number in range(10)])
    pods[0].until(lambda: len(dump(group.bootstrap, group.dlq)) == 10, 15, "the first failure is the last")
    assert len(service.ledger.deliveries()) == 10
    assert policy(group, "set", "--unset", "max_reconsume_times", "--yes").exit_code == 0
    for pod in pods:
        follows(pod, max_reconsume_times=2, concurrency=7)
    shown = {row["key"]: row for row in map(json.loads, policy(group, "show").stdout.splitlines())}
    assert shown["concurrency"] == {"key": "concurrency", "value": 7, "origin": "policy"}


def test_a_new_timeout_and_ladder_hold_for_what_fails_from_then_on_and_what_waits_keeps_its_time(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(by_name({"flaky": (FAIL, OK), "hang": (Answer(after=8.0), OK)}))
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "retry": {"ladder": ["5s"]}})
    produce(group.bootstrap, group.main, [b"flaky:old"])
    sidecar.until(lambda: dump(group.bootstrap, group.names.level(5_000, group.main)), 10, "the old one waits")
    set_policy(group, ladder=["1s"], timeout="300ms")
    follows(sidecar, ladder=["1s"], timeout="300ms")
    produce(group.bootstrap, group.main, [b"flaky:new", b"hang:new"])
    values = (b"flaky:old", b"flaky:new", b"hang:new")
    sidecar.until(lambda: all(len(deliveries(service, value)) == 2 for value in values), 20, "all are retried")
    gaps = {}
    for value in (b"flaky:old", b"flaky:new"):
        first, second = deliveries(service, value)
        assert first.answered is not None
        gaps[value] = second.received - first.answered
    assert gaps[b"flaky:old"] >= 5_000 - GRAIN
    assert 1_000 - GRAIN <= gaps[b"flaky:new"] < 1_000 + LATE
    first, second = deliveries(service, b"hang:new")
    assert 1_300 - GRAIN <= second.received - first.received < 1_300 + LATE
    waiting = dump(group.bootstrap, group.names.level(1_000, group.main))
    assert len(waiting) == 2


@pytest.mark.long
def test_a_policy_whose_levels_are_missing_is_not_taken_until_they_are_made(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, policy: Call
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    missing = group.names.level(3_000, group.main)
    refused = policy(group, "set", "ladder=[3s]", "levels=[1s, 2s, 3s, 5s]", "--yes")
    assert refused.exit_code == 1
    assert (
        f"level topics are missing, or not for this user to see: {missing}; create them first: reconsume topics"
        in refused.stderr
    )
    assert all(row.key != b"policy" for row in dump(group.bootstrap, group.names.policy))
    set_policy(group, ladder=["3s"], levels=["1s", "2s", "3s", "5s"], max_reconsume_times=1)
    assert missing in sidecar.wait_log("is not applied, the previous one stays in force")
    assert policy_of(sidecar)["policy"]["max_reconsume_times"] == 2
    (problem,) = sidecar.status()["policy"]["refused"]
    assert missing in problem
    wider = GroupTopics(group.bootstrap, group.group, group.mains, (1_000, 2_000, 3_000, 5_000))
    create_specs(group.bootstrap, [spec for spec in specs_of(wider) if spec.name == missing])
    sidecar.until(lambda: policy_of(sidecar)["refused"] == [], 20, "the policy is taken once its topic is there")
    follows(sidecar, ladder=["3s"], max_reconsume_times=1)
    produce(group.bootstrap, group.main, [b"flaky:"])
    sidecar.until(lambda: len(service.ledger.taken()) == 1, 20, "the new level is read")
    assert len(dump(group.bootstrap, missing)) == 1


@pytest.mark.long
def test_hostile_records_stop_nothing_and_the_last_good_policy_holds(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    hostile = [b"", b"\xff", b"[" * 50_000, b'{"v": 2, "policy": {}, "who": "x", "at": 1}', b"x" * 100_000, b"null"]
    for value in hostile:
        write(group, value)
    write(group, b"{}", b"instance/\xff")
    write(group, b"{}", b"who knows")
    set_policy(group, max_reconsume_times=1)
    for value in hostile:
        write(group, value)
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    follows(sidecar, max_reconsume_times=1)
    assert sidecar.metric("reconsume_bad_policy_records_total") == 12, "a newer version's records are not bad"
    set_policy(group, max_reconsume_times=-1, ladder="steep", unknown=1)
    line = sidecar.wait_log("retry.max_reconsume_times = -1")
    assert "is not applied, the previous one stays in force" in line
    assert "retry.max_reconsume_times = -1: must be a whole number from 0 to 999999" in line
    assert "retry.ladder = steep: must be rocketmq, pulsar" in line
    assert policy_of(sidecar)["policy"]["max_reconsume_times"] == 1
    produce(group.bootstrap, group.main, [b"flaky:", b"poison:"])
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 1, 20, "records flow by the policy that holds")
    write(group, None)
    follows(sidecar, max_reconsume_times=2)


def test_strict_refuses_to_start_by_another_policy_than_the_groups(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    strict = {**CALM, "policy_mode": "strict"}
    running = start_sidecar(group, service.url, "first", strict)
    set_policy(group, max_reconsume_times=5, ladder=["2s"], concurrency=64)
    running.wait_log("is not applied, the previous one stays in force")
    assert policy_of(running)["policy"]["max_reconsume_times"] == 2
    late = start_sidecar(group, service.url, "late", strict, wait=False)
    assert late.wait(60).code == 78
    lines = [line for line in late.log().splitlines() if "configuration: " in line]
    assert len(lines) == 2
    assert "retry.max_reconsume_times: the configuration says 2 and the group's policy says 5" in lines[0]
    assert "retry.ladder: the configuration says [1s, 2s] and the group's policy says [2s]" in lines[1]
    assert "reconsume policy set 'ladder=[1s, 2s]'" in lines[1]
    same = {**strict, "retry": {"max_reconsume_times": 5, "ladder": ["2s"]}}
    good = start_sidecar(group, service.url, "good", same)
    assert policy_of(good)["who"] == "test"


def test_instances_that_want_different_records_are_told_of_until_they_agree(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    here = start_sidecar(group, service.url, "here")
    assert here.metric("reconsume_instances_differ") == 0
    other = start_sidecar(group, service.url, "other", {"topics": [{"name": group.main, "tags": "TagA"}]})
    for pod in (here, other):
        pod.until(partial(differing, pod), SECONDS, "it sees that the other differs")
        (difference,) = differing(pod)
        assert (difference["key"], difference["applies"]) == ("tags", None)
        assert difference["values"] == [
            {"value": group.main, "instances": ["here"]},
            {"value": f"{group.main} (TagA)", "instances": ["other"]},
        ]
        assert pod.metric("reconsume_instances_differ") == 1
        assert "give all of them one configuration" in pod.wait_log("the instances of the group differ: tags is")
    assert other.stop().code == 0
    here.until(lambda: differing(here) == [], SECONDS, "a clean stop takes it back")
    assert here.metric("reconsume_instances_differ") == 0
    here.wait_log("all instances of the group agree again")


def test_without_the_policy_topic_the_configuration_holds_and_the_topic_is_taken_up_once_it_is_there(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url)
    sidecar.wait_log(f"{group.names.policy} is missing, or not for this user to see")
    assert policy_of(sidecar)["policy"]["max_reconsume_times"] == 2
    began = time.monotonic()
    create_specs(group.bootstrap, [spec for spec in specs_of(group, also=(Kind.POLICY,)) if spec.kind is Kind.POLICY])
    set_policy(group, max_reconsume_times=9)
    follows(sidecar, max_reconsume_times=9)
    assert time.monotonic() - began < SECONDS
    assert sidecar.log().count("-RETRY-POLICY is missing, or not for this user to see") == 1
