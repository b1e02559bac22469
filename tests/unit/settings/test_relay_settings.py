"""Relay mode needs no URL, and takes none of the settings that only a delivery could honour."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings import load
from tests.support.sidecar.settings import problems

RELAY = ["group=billing", "topics=[orders]", "kafka.bootstrap.servers=localhost:9092", "deliver.mode=relay"]


def test_a_relay_needs_no_url() -> None:
    settings = load(None, RELAY, {})
    assert settings.deliver.url is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("deliver.url=http://127.0.0.1:8080/", "deliver.url = http://127.0.0.1:8080/"),
        ("deliver.health_url=http://127.0.0.1:8080/", "deliver.health_url = http://127.0.0.1:8080/"),
        ("deliver.order=key", "deliver.order = key"),
        ("deliver.broadcast=true", "deliver.broadcast = true"),
        ("deliver.batch.max_size=2", "deliver.batch.max_size = 2"),
        ("deliver.timeout=5s", "deliver.timeout"),
        ("deliver.leave_after=5s", "deliver.leave_after"),
        ("deliver.dead_letter_statuses=[422]", "deliver.dead_letter_statuses"),
        ("topics=[{name: orders, tags: A}]", "topics[0].tags = A: has no effect"),
        ("topics=[{name: orders, path: /orders}]", "topics[0].path"),
        ("topics=[{name: orders, rate: 5/s}]", "topics[0].rate"),
        ("deliver.rate=5/s", "deliver.rate"),
        ("deliver.group_rate=5/s", "deliver.group_rate"),
    ],
)
def test_what_a_relay_cannot_honour_is_refused_by_name(
    change: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "reconsume.yaml"
    file.write_text("group: billing\n")
    (problem,) = problems(file, [*RELAY, change])
    assert problem.startswith(sentence)
    assert "has no effect in relay mode" in problem
