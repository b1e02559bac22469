"""Instances of one group that are configured differently decide alike, whichever of them owns the partition."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from reconsume.topics.names import Kind
from reconsume.topics.policy_record import InstanceHeard, parse_record
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_specs, specs_of
from tests.support.kafka.topic_io import delete_topics, dump, produce
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.policy import CALM, SECONDS, follows, policy_of, set_policy, with_policy
from tests.support.sidecar.process import SidecarProcess

SCRIPT = by_name({"poison": (FAIL,), "flaky": (FAIL, OK)})
GONE_WITHIN = 5.0
"""Seconds from a SIGTERM to the end of what the process had brought."""


def retrying(times: int) -> dict[str, Any]:
    """A configuration with so many retries."""
    return {**CALM, "retry": {"max_reconsume_times": times, "ladder": ["1s"]}}


def apply(*pods: SidecarProcess, times: int, within: float = SECONDS) -> None:
    """Wait until all these instances retry so often, by settings that the log has. Of two configurations that appear
    before either is in the log, none is the newer one."""

    def applies(pod: SidecarProcess) -> bool:
        shown = policy_of(pod)
        return shown["policy"]["max_reconsume_times"] == times and shown["settings"] is not None

    for pod in pods:
        pod.until(partial(applies, pod), within, f"{times} retries apply")


def starts(start: StartSidecar, group: GroupTopics, url: str, times: Sequence[int]) -> list[SidecarProcess]:
    """Start `pod-N` for each number of retries N, one after the other."""
    pods = []
    for number in times:
        pods.append(start(group, url, f"pod-{number}", retrying(number)))
        apply(*pods, times=number)
    return pods


def whose(pod: SidecarProcess) -> tuple[str, list[str]]:
    """Where the number of retries comes from, and the instances whose settings apply."""
    shown = policy_of(pod)
    return shown["origins"]["max_reconsume_times"], shown["instances"]


def beats_of(group: GroupTopics) -> Mapping[str, list[str]]:
    """What each instance has said in turn of the settings that it follows."""
    said: dict[str, list[str]] = {}
    for row in dump(group.bootstrap, group.names.policy):
        parsed = parse_record(row.key, row.value)
        if isinstance(parsed, InstanceHeard) and parsed.record is not None and parsed.record.obeys is not None:
            said.setdefault(parsed.instance, []).append(parsed.record.obeys.settings)
    return said


def test_two_pods_with_3_and_20_retries_decide_alike_whichever_restarts_and_a_rollback_takes_effect(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    old, new = starts(start_sidecar, group, service.url, (20, 0))
    assert whose(old) == ("instances", ["pod-0"])
    assert whose(new) == ("file", ["pod-0"])
    line = old.wait_log("the instances of the group differ")
    assert "max_reconsume_times is 0 at pod-0 and 20 at pod-20: 0 applies to all (instances)" in line
    produce(group.bootstrap, group.main, [b"poison:%d" % number for number in range(20)])
    old.until(lambda: len(dump(group.bootstrap, group.dlq)) == 20, SECONDS, "each failure is the last, at both pods")
    assert len(service.ledger.deliveries()) == 20

    old.stop()
    again = start_sidecar(group, service.url, "pod-20", retrying(20))
    apply(again, new, times=0)
    (difference,) = again.until(lambda: again.status()["instances_differ"], SECONDS, "it sees that they differ")
    assert (difference["key"], difference["applies"]) == (
        "max_reconsume_times",
        {"value": 0, "origin": "instances"},
    )

    new.signal(signal.SIGTERM)
    apply(again, times=20, within=GONE_WITHIN)
    assert new.wait().code == 0
    again.wait_log("all instances of the group agree again")
    assert whose(again) == ("file", ["pod-20"])


def test_an_explicit_policy_applies_over_the_newest_settings_and_nothing_is_said_twice(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = starts(start_sidecar, group, service.url, (3, 5))
    set_policy(group, max_deaths=9)
    for pod in pods:
        follows(pod, max_reconsume_times=5, max_deaths=9)
        assert policy_of(pod)["origins"]["max_deaths"] == "policy"
    digest = policy_of(pods[0])["settings"]
    until(lambda: all(said[-1] == digest for said in beats_of(group).values()), SECONDS, "heartbeats name it")
    keys = [row.key for row in dump(group.bootstrap, group.names.policy) if (row.key or b"").startswith(b"settings/")]
    assert len(keys) == len(set(keys)) == 2, "each configuration is written once"


@pytest.mark.long
def test_a_policy_topic_that_was_made_anew_gets_the_settings_with_their_order(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given two configurations whose digests say nothing of their age, then after the topic is made anew the newer
    one still applies."""
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = starts(start_sidecar, group, service.url, (20, 7, 4))
    delete_topics(group.bootstrap, group.names.policy)
    create_specs(group.bootstrap, [one for one in specs_of(group, also=(Kind.POLICY,)) if one.kind is Kind.POLICY])
    pods[0].until(lambda: len(beats_of(group)) == 3, 120, "all have written to the new topic")
    apply(*pods, times=4)
    pods[2].stop()
    apply(*pods[:2], times=7)


def test_an_instance_of_its_own_keeps_its_settings_and_no_other_follows_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    usual = start_sidecar(group, service.url, "usual", retrying(4))
    own = start_sidecar(group, service.url, "own", {**retrying(8), "policy_mode": "own"})
    set_policy(group, max_deaths=6)
    for pod, times in ((usual, 4), (own, 8)):
        follows(pod, max_reconsume_times=times, max_deaths=6)
    assert whose(own) == ("file", [])


def test_a_killed_pod_still_counts_and_a_restart_of_the_same_pod_changes_nothing(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    old, new = starts(start_sidecar, group, service.url, (6, 2))
    new.kill()
    third = start_sidecar(group, service.url, "pod-third", retrying(6))
    apply(old, third, times=2)
    assert whose(third) == ("instances", ["pod-2"])
