"""A main topic that leaves the configuration, where each has levels of its own: its retries are passed on, not left."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import dump, produce
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.policy import CALM
from tests.support.sidecar.process import SidecarProcess

SCRIPT = by_name({"flaky": (FAIL, OK)})
WAITING = {**CALM, "retry": {"ladder": ["5s"], "unknown_topic": "2s"}}


@pytest.mark.long  # sim/test_group_sim.py tells of roll-outs in every run
def test_the_retries_of_a_removed_topic_become_dead_letters_and_are_named_until_then(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given retries in a topic's own level, when a pod starts without that topic, then none is left in the level."""
    group = create_group(replace(new_group(2), template="{topic}-{group}"))
    kept, removed = group.mains
    level = group.names.level(5_000, removed)
    service = start_service(SCRIPT)
    before = start_sidecar(group, service.url, "old", WAITING)
    produce(group.bootstrap, removed, [b"flaky:%d" % number for number in range(5)])
    before.until(lambda: len(dump(group.bootstrap, level)) == 5, 10, "all wait in the level")
    assert before.stop().code == 0

    smaller = replace(group, mains=(kept,))
    file = tmp_path / "reconsume.yaml"
    file.write_text(json.dumps(config_of(smaller, service.url, 1, WAITING)))
    assert checked(file) == {level}

    after = start_sidecar(smaller, service.url, "new", WAITING)
    policy = after.status()["policy"]
    assert (policy["removed_levels"], policy["removed_topics"]) == ([level], [removed])
    assert after.metric("reconsume_removed_levels") == 1
    after.until(lambda: len(dump(group.bootstrap, group.names.dlq(kept))) == 5, 20, "all are dead letters")
    headers = [dict(letter.headers) for letter in dump(group.bootstrap, group.names.dlq(kept))]
    assert {(head["REAL_TOPIC"], head["RETRY_REASON"].split(b":")[0]) for head in headers} == {
        (removed.encode(), b"unknown-topic")
    }
    after.until(lambda: after.status()["policy"]["removed_topics"] == [], 30, "the level is empty, and read no more")
    after.until(lambda: level not in topics_of(after), 10, "its partitions are given up")
    assert checked(file) == set()
    assert after.stop().code == 0


def topics_of(sidecar: SidecarProcess) -> set[str]:
    """The topics of which the sidecar has a partition."""
    return {part["topic"] for part in sidecar.status()["partitions"]}


def checked(file: Path) -> set[str]:
    """The levels that `doctor` names for having lost their main topic."""
    shown = reconsume("doctor", "-o", "json", "--config", file)
    (row,) = [row for row in json.loads(shown.stdout) if row["check"] == "leftovers"]
    return set(re.findall(r"left the configuration, .* wait in (\S+)", row["finding"]))
