"""What many groups cost: their topics, rights and pods, added up without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sidecar.cli import reconsume

COMMON = "kafka: {bootstrap.servers: '127.0.0.1:1'}\ndeliver: {url: 'http://127.0.0.1:8080/events'}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base, 60 groups of one topic each, and a file of another tool."""
    (tmp_path / "common.yaml").write_text(COMMON, "utf-8")
    for number in range(60):
        text = f"base: common.yaml\ngroup: group-{number}\ntopics: [orders-{number}]\n"
        (tmp_path / f"g{number:02}.yaml").write_text(text, "utf-8")
    (tmp_path / "kustomization.yaml").write_text("resources: []\n", "utf-8")
    return tmp_path


def given(count: int = 60) -> tuple[str, ...]:
    return ("--partitions", ",".join(f"orders-{number}=12" for number in range(count)), "--replicas", "3")


def test_a_folder_is_added_up_with_its_pods_and_no_broker(folder: Path) -> None:
    shown = reconsume("topics", "plan", folder, *given(), "-o", "jsonl")
    assert shown.exit_code == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["group"] for row in rows] == [f"group-{number}" for number in range(60)]
    one = reconsume("acls", "export", "-c", folder / "g00.yaml").stdout.count("--operation ")
    assert {(row["topics"], row["partitions"], row["replicas"], row["rights"]) for row in rows} == {(10, 56, 168, one)}
    assert (
        f"cost of 60 groups: 600 topics, 3360 partitions, 10080 replicas, {60 * one} rights, 180 pods; "
        "the pods' sidecars request 9 cores and 16.9 GiB, with memory limits of 45.0 GiB"
    ) in shown.stderr
    assert "360 pods" in reconsume("topics", "plan", folder, *given(), "--pods", "6").stderr


def test_a_bad_file_or_a_group_twice_ends_the_sum(folder: Path) -> None:
    (folder / "twin.yaml").write_text("base: common.yaml\ngroup: group-7\ntopics: [orders-7]\n", "utf-8")
    (folder / "g08.yaml").write_text("base: common.yaml\ngroup: group-8\ntopics: 8\n", "utf-8")
    (folder / "broken.yaml").write_text("group: [\n", "utf-8")
    shown = reconsume("topics", "plan", folder, *given())
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert f"{folder / 'twin.yaml'}: its group group-7 is that of {folder / 'g07.yaml'}, too" in shown.stderr
    assert f"{folder / 'g08.yaml'}: topics = 8" in shown.stderr
    assert f"warning: {folder / 'broken.yaml'} is passed over: is not YAML" in shown.stderr


def test_a_folder_without_a_group_and_options_without_a_folder_are_refused(tmp_path: Path, folder: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    shown = reconsume("topics", "plan", empty, *given())
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "no file *.yaml in it names a group" in shown.stderr
    assert reconsume("topics", "plan", "-c", folder / "g00.yaml", "--pods", "2").exit_code == 2
    assert "--partitions lacks orders-59" in reconsume("topics", "plan", folder, *given(59)).stderr
