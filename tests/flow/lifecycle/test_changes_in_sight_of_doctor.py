"""What a service's life brings (another ladder, more partitions, another topic): `doctor` finds nothing to repair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, add_partitions, create_topic, dump, produce
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, with_policy

OLD, NEW = 600_000, 1_000
"""ms. The level that leaves the ladder, where a record waits, and the one that stays."""


def faults(folder: Path, group: GroupTopics) -> list[dict[str, Any]]:
    """What `doctor` calls a failure. It is not asked from beside the service, which it cannot reach."""
    checks = json.loads(for_group(folder, group, "doctor", "-o", "json").stdout)
    return [check for check in checks if check["status"] == "fail" and check["check"] != "service"]


def test_a_level_that_left_the_ladder_is_emptied_and_nothing_is_wrong(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a record that waits ten minutes in a level, when a roll-out takes the level out of the ladder."""
    group = with_policy(replace(new_group(), delays=(NEW, OLD)))
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    before = start_sidecar(group, service.url, overrides={**CALM, "retry": {"ladder": ["10m"]}})
    produce(group.bootstrap, group.main, [Out(b"flaky")])
    level = group.names.level(OLD, group.main)
    before.until(lambda: len(dump(group.bootstrap, level)) == 1, 30, "it waits in the old level")
    assert before.stop().code == 0
    after = replace(group, delays=(NEW,))
    sidecar = start_sidecar(after, service.url, overrides={**CALM, "retry": {"ladder": ["1s"]}})
    sidecar.until(
        lambda: any(row["topic"] == level for row in sidecar.status()["partitions"]), 60, "it reads the old level"
    )
    assert faults(tmp_path, after) == []


def test_more_partitions_and_another_topic_leave_nothing_to_repair_but_what_topics_apply_does(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    service = start_service(by_name({}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    other = f"{group.main}-new"
    create_topic(group.bootstrap, other)
    wider = replace(group, mains=(*group.mains, other))
    second = start_sidecar(wider, service.url, "pod-1", CALM)
    produce(group.bootstrap, other, [Out(b"first")])
    second.until(lambda: len(service.ledger.taken()) == 1, 60, "the record of the new topic is delivered")
    assert sidecar.stop().code == 0, "the roll-out is over"
    assert faults(tmp_path, wider) == []
    add_partitions(group.bootstrap, group.main, 4)
    produce(group.bootstrap, group.main, [Out(b"late", partition=3)])
    second.until(lambda: len(service.ledger.taken()) == 2, 60, "the new partition is read")
    assert {check["check"] for check in faults(tmp_path, wider)} <= {"topics"}, "as `topics check` says"
