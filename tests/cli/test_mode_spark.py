"""A group that only Spark queries consume: the commands that look at a group, and that act on it, take its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.topic_io import create_topic, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter

EVERY_SIX = {"10s", "30s", "1m", "5m", "30m", "2h"}


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group of which only the main topic is there."""
    made = fresh_group(kafka.bootstrap)
    create_topic(kafka.bootstrap, made.main)
    return made


@pytest.fixture
def file(group: GroupTopics, tmp_path: Path) -> Path:
    config = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"mode": "spark"},
    }
    path = tmp_path / "reconsume.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def rows(file: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    shown = reconsume(*words, "-c", file, "-o", "jsonl")
    assert shown.exit_code == code, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_its_topics_are_those_of_its_ladder_and_its_dead_letters_can_be_redriven(
    group: GroupTopics, file: Path
) -> None:
    made = {row["topic"] for row in rows(file, "topics", "apply", "--yes")}
    own = {"RETRY", "RETRY-EVENTS", "RETRY-POLICY", "DLQ", *(f"RETRY-{level}" for level in EVERY_SIX)}
    assert made - {group.main} == {f"{group.group}-{name}" for name in own}
    produce(group.bootstrap, group.dlq, [dead_letter(group, 0)])
    assert [row["state"] for row in rows(file, "dlq", "list")] == ["ready"]
    [redriven] = rows(file, "dlq", "redrive", "--yes")
    assert (redriven["action"], redriven["letters"]) == ("redriven", 1)


def test_no_check_asks_for_a_service_and_the_rights_are_those_of_queries(group: GroupTopics, file: Path) -> None:
    rows(file, "topics", "apply", "--yes")
    shown = reconsume("doctor", "-c", file, "-o", "jsonl")
    checks = {row["check"]: row["status"] for row in map(json.loads, shown.stdout.splitlines())}
    assert "service" not in checks
    assert [name for name, status in checks.items() if status == "fail"] == [], shown.stdout
    names = json.dumps(rows(file, "acls", "plan", "--principal", "User:ship", "--role", "service"))
    assert f"{group.group}-SPARK-" in names
    assert "spark: queries consume the group" in reconsume("explain", "-c", file).stderr
