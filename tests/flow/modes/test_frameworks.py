"""Services in five frameworks behind a real broker and sidecar, with no setting of `deliver` but the URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.frameworks import FETCHED, example
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.process import SidecarProcess


def commits(sidecar: SidecarProcess) -> float:
    """Deliveries that the service accepted."""
    lines = [line for line in sidecar.metrics().splitlines() if line.startswith("reconsume_deliveries_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="commit"' in line)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in FETCHED else ())
        for name in ("fastapi", "flask", "django", "express", "spring")
    ],
)
def test_a_service_handles_json_at_once_and_a_dead_letter_says_why(
    name: str, new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given JSON without headers, then it is handled; what is refused has the service's reason in event and list."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    known = [Out(b'{"sku": "A-17"}', None)] * 20
    with example(name, tmp_path) as url:
        sidecar = start_sidecar(group, url, overrides={"retry": {"max_reconsume_times": 1}})
        produce(group.bootstrap, group.main, [*known, Out(b'{"sku": "A-99"}', None)])
        sidecar.until(lambda: dump(group.bootstrap, group.dlq), 60, "the refused order is a dead letter")
        sidecar.until(lambda: commits(sidecar) == 20, 60, "all others are done")
    events = [json.loads(row.value or b"") for row in dump(group.bootstrap, group.names.events)]
    assert {event["id"] for event in events} == {f"{group.main}:0:20"}
    file = tmp_path / "reconsume.yaml"
    tree = {"group": group.group, "topics": [group.main], "kafka": {"bootstrap.servers": group.bootstrap}}
    retry = {"levels": ["1s"], "ladder": ["1s"]}
    file.write_text(json.dumps({**tree, "deliver": {"url": "http://127.0.0.1:1/"}, "retry": retry}))
    [listed] = map(json.loads, reconsume("dlq", "list", "-c", file, "-o", "jsonl").stdout.splitlines())
    assert listed["reason"] == "http-422"
    for text in (listed["text"], *(event["text"] for event in events)):
        assert text.endswith("A-99 is not in the catalogue")
