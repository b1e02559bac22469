"""The data folder of a new node: made by Kafka's tool once for a release and its features, else a copy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.first_metadata import cluster_id, format_folder, is_formatted, kept_checkpoint
from reconsume.sidecar.dev.kafka.node import Node
from reconsume.sidecar.dev.kafka.node_config import Plan
from reconsume.sidecar.errors import SetupError

WRITES = """
import pathlib, sys
told = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
data = pathlib.Path(told["config"]).parent / "data"
data.mkdir()
(data / "bootstrap.checkpoint").write_text(told.get("feature", "none"))
(data / "meta.properties").write_text("cluster.id=" + told["cluster-id"])
"""
FAILS = "raise SystemExit('no space left')"


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock file of a release; the cache is empty."""
    monkeypatch.setenv("RECONSUME_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "jars-4.9.lock"
    file.write_text("org.apache.kafka:kafka:4.9 abc 1")
    return file


def node(folder: Path, number: int = 0) -> Node:
    (folder / f"node-{number}").mkdir(parents=True)
    plan = Plan(number, folder / f"node-{number}", 1, 2)
    return Node(plan, [], lambda: None, lambda _: None)


def formatted(made: Node, program: str, lock: Path, features: dict[str, int] | None = None) -> dict[str, str]:
    """What `meta.properties` says then."""
    format_folder(made, [sys.executable, "-c", program], lock, "QlVz-cluster", features or {}, 60)
    assert is_formatted(made.plan.data)
    lines = (made.plan.data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_tool_runs_once_for_a_release_and_each_copy_has_the_ids_of_its_own_node(tmp_path: Path, lock: Path) -> None:
    formatted(node(tmp_path), WRITES, lock)
    nodes = [node(tmp_path, number) for number in (1, 2)]
    one, two = (formatted(made, FAILS, lock) for made in nodes)
    assert (one["node.id"], two["node.id"]) == ("1", "2")
    assert (one["version"], one["cluster.id"]) == (two["version"], two["cluster.id"]) == ("1", "QlVz-cluster")
    assert one["directory.id"] != two["directory.id"]
    assert [(made.plan.data / "bootstrap.checkpoint").read_text() for made in nodes] == ["none", "none"]
    assert cluster_id([tmp_path / "nowhere", nodes[1].plan.data]) == "QlVz-cluster"


def test_other_features_and_other_releases_are_formatted_by_the_tool(tmp_path: Path, lock: Path) -> None:
    formatted(node(tmp_path), WRITES, lock)
    other = node(tmp_path, 1)
    formatted(other, WRITES, lock, {"transaction.version": 1})
    assert (other.plan.data / "bootstrap.checkpoint").read_text() == "transaction.version=1"
    before = kept_checkpoint(lock, {})
    lock.write_text("org.apache.kafka:kafka:4.9.1 abc 1")
    assert kept_checkpoint(lock, {}) != before


def test_a_tool_that_fails_is_told_with_its_words_and_keeps_nothing(tmp_path: Path, lock: Path) -> None:
    with pytest.raises(SetupError, match="Kafka node 0 cannot format its data folder:") as refused:
        formatted(node(tmp_path), FAILS, lock)
    assert refused.value.log == "no space left"
    assert not kept_checkpoint(lock, {}).exists()


def test_a_cache_that_cannot_be_written_costs_the_tool_each_time(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    formatted(node(tmp_path), WRITES, lock)
    formatted(node(tmp_path, 1), WRITES, lock)


def test_a_cluster_that_was_never_formatted_gets_a_new_id(tmp_path: Path) -> None:
    assert cluster_id([tmp_path]) != cluster_id([tmp_path])
    assert len(cluster_id([tmp_path])) == 22
