"""Levels that leave the policy: they are read until they are empty, whatever happens meanwhile, and then no more."""

from __future__ import annotations

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.policy import CALM, follows, set_policy, with_policy

SCRIPT = by_name({"flaky": (FAIL, OK)})


@pytest.mark.long
def test_a_removed_level_is_read_until_it_is_empty_also_across_a_restart(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    removed = group.names.level(5_000, group.main)
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "retry": {"ladder": ["5s"]}})
    produce(group.bootstrap, group.main, [b"flaky:%d" % number for number in range(20)])
    sidecar.until(lambda: len(dump(group.bootstrap, removed)) == 20, 10, "all wait in the level")
    set_policy(group, ladder=["1s"], levels=["1s", "2s"])
    follows(sidecar, levels=["1s", "2s"])
    assert sidecar.status()["policy"]["removed_levels"] == [removed]
    assert sidecar.stop().code == 0
    sidecar.start()
    sidecar.wait_ready()
    sidecar.until(lambda: len(service.ledger.taken()) == 20, 20, "what waited in the removed level is delivered")

    def given_up() -> bool:
        status = sidecar.status()
        read = {partition["topic"] for partition in status["partitions"]}
        return status["policy"]["removed_levels"] == [] and removed not in read and group.names.ready in read

    sidecar.until(given_up, 30, "the empty level is read no more")
    produce(group.bootstrap, group.main, [b"flaky:later"])
    sidecar.until(lambda: len(service.ledger.taken()) == 21, 10, "the new ladder goes on")
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.duplicates, report.waiting) == (21, 0, 0), report


def test_a_level_that_the_configuration_lost_is_read_until_it_is_empty(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Without any policy on Kafka: the file was changed, and the pod started anew."""
    group = create_group(new_group())
    service = start_service(SCRIPT)
    before = start_sidecar(group, service.url, "old", {**CALM, "retry": {"ladder": ["5s"]}})
    produce(group.bootstrap, group.main, [b"flaky:%d" % number for number in range(5)])
    removed = group.names.level(5_000, group.main)
    before.until(lambda: len(dump(group.bootstrap, removed)) == 5, 10, "all wait in the level")
    assert before.stop().code == 0
    shorter = {**CALM, "retry": {"ladder": ["1s"], "levels": ["1s"]}}
    after = start_sidecar(group, service.url, "new", shorter)
    assert after.status()["policy"]["removed_levels"] == [removed]
    after.until(lambda: len(service.ledger.taken()) == 5, 20, "what waited in the removed level is delivered")


def test_a_ladder_is_made_by_hops_of_the_levels_that_there_are(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given one level of 1 s, when the second retry waits 3 s, then its copy passes that level again and again.

    What is left after two hops is shorter than the level by the time that they took, and is waited in memory.
    """
    group = create_group(new_group(1, (1_000,)))
    service = start_service(by_name({"twice": (FAIL, FAIL, OK)}))
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "retry": {"ladder": ["1s", "3s"]}})
    produce(group.bootstrap, group.main, [b"twice:%d" % number for number in range(10)])
    sidecar.until(lambda: len(service.ledger.taken()) == 10, 20, "all are taken at the second retry")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    report = check(evidence)
    assert (report.committed, report.duplicates, report.waiting) == (10, 0, 0), report
    assert len(dump(group.bootstrap, group.names.level(1_000, group.main))) in range(30, 41)


def test_a_group_that_retries_in_place_needs_no_level(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(1, ()))
    service = start_service(by_name({"later": (FAIL, FAIL, OK), "never": (FAIL,)}))
    in_place = {"levels": "ladder", "ordered_interval": "50ms", "ordered_max_times": 3}
    order = {"deliver": {"order": "key", "outage_failures": None}, "retry": in_place}
    sidecar = start_sidecar(group, service.url, overrides=order)
    assert sidecar.status()["policy"]["refused"] == []
    produce(group.bootstrap, group.main, [b"later:1", b"never:1", b"good:1"])
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 20, "two are taken in the end")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 1, 10, "one is dead")
    assert sidecar.request("GET", "/readyz").status == 200
    assert sidecar.stop().code == 0
