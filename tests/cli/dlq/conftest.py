"""A group without a sidecar, and `dlq` called for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.dlq_calls import Call


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=1)


@pytest.fixture
def call(group: GroupTopics, tmp_path: Path) -> Call:
    """`call("list")`: `reconsume dlq list` for the group."""
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": group.group,
        "topics": [group.main],
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1s"], "ladder": ["1s"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words, **more: reconsume("dlq", *words, "-c", file, **more)
