"""The README's Python services behind a burst of records: none is failed because the service's own backlog is short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.operations.readme import examples, service
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.service import free_port, listens

BURST = 2_000
SECONDS = 60.0
USUAL = {"timeout": "15m", "concurrency": 256, "outage_failures": 20}
"""The defaults, where the configuration of tests has other values."""
EXAMPLES = {name: example for name, example in examples().items() if name in ("push", "ordered")}


@pytest.mark.parametrize("mode", EXAMPLES)
def test_a_burst_costs_no_connection_and_no_retry(
    mode: str, new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    example, group, port = EXAMPLES[mode], create_group(new_group()), free_port()
    url = f"http://127.0.0.1:{port}/events"
    sidecar = start_sidecar(group, url, overrides={"deliver": {**example.config["deliver"], **USUAL, "url": url}})
    with service(example, group, port, sidecar.port, tmp_path):
        sidecar.until(lambda: listens(port), SECONDS, "the service listens")
        produce(group.bootstrap, group.main, (Out(b"{}", key=b"%d" % number) for number in range(BURST)))
        sidecar.until(lambda: len(answers(tmp_path)) >= BURST, SECONDS, "the service has answered every record")
        sidecar.until(lambda: outcomes(sidecar.metrics()).total() >= BURST, SECONDS, "every answer has come back")
    assert outcomes(sidecar.metrics()) == {"commit": BURST}
    assert sidecar.metric('reconsume_pace_changes_total{state="outage"}') == 0
    assert dump(group.bootstrap, group.names.events) == []
    assert answers(tmp_path) == ["200"] * BURST
    assert "Traceback" not in (tmp_path / "service.log").read_text()


def answers(folder: Path) -> list[str]:
    """The status of each answer, as the service logs it."""
    return re.findall(r'"POST /events HTTP/1\.1" (\d+)', (folder / "service.log").read_text())


def outcomes(metrics: str) -> Counter[str]:
    """How many deliveries ended in each way, at all levels together."""
    found = re.findall(r'^reconsume_deliveries_total\{.*outcome="(\w+)".*\} (\S+)$', metrics, re.M)
    counts: Counter[str] = Counter()
    for name, count in found:
        counts[name] += int(float(count))
    return +counts
