"""examples/retries.ipynb: its cells run in order, and show what the group has in retry."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reconsume.topics.events import encode_event
from tests.support.event_histories import history, truth
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, produce

NOTEBOOK = Path(__file__).parents[2] / "examples" / "retries.ipynb"
RECORDS = 30


def cells(kind: str) -> list[str]:
    """The text of each cell of a kind, in order."""
    page = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == kind]


def test_the_cells_run_in_order_and_show_the_groups_records(
    spark: SparkSession,
    kafka: Broker,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = [event for number in range(RECORDS) for event in history(Random(number), group, number)]
    create_topic(kafka.bootstrap, f"{group}-RETRY-EVENTS", 1)
    produce(kafka.bootstrap, f"{group}-RETRY-EVENTS", [Out(encode_event(event), event.id.encode()) for event in events])
    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    monkeypatch.setenv("GROUP", group)
    names: dict[str, Any] = {"spark": spark}
    for cell in cells("code"):
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    shown = capsys.readouterr().out
    expected = list(truth(events).values())
    assert sum(count for _, count in names["minutes"]) == len(expected)
    for row in expected:
        assert f"{row['state']}" in shown
        if row["state"] == "WAITING_RETRY":
            assert f"|{row['id']} " in shown or f"|{row['id']}|" in shown
    names["rows"].unpersist()


def test_the_notebook_is_kept_without_what_it_has_shown() -> None:
    page = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert page["nbformat"] == 4
    assert [cell["outputs"] for cell in page["cells"] if cell["cell_type"] == "code"] == [[]] * len(cells("code"))
    assert cells("markdown")[0].startswith("# ")
