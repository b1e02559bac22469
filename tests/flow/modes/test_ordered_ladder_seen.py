"""What is seen of blocked keys, on a real broker: metrics, `/status`, the warning, and the pause at the bound."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_ladder import LADDER, queued
from tests.support.kafka.topic_io import Out, produce
from tests.support.kubernetes.promql import QUEUED, exported_by, expressions, faults, uses
from tests.support.service.behaviours import Answer
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of

BOUND = 100
KEY = b"ada@example.com"
NAMES = ("blocked_keys", "behind_records")


def test_a_key_that_fails_is_seen_while_its_queue_fills_and_at_its_bound(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = queued(new_group(), partitions=1)
    well = threading.Event()
    service = start_service(lambda request: Answer(500 if request.value == b"bad" and not well.is_set() else 200))
    retry = {**LADDER["retry"], "ordered_ladder": ["3s"], "ordered_max_waiting": BOUND}  # type: ignore[dict-item]
    overrides = {**LADDER, "retry": retry, "log": {"format": "json"}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    file = tmp_path / "reconsume.yaml"
    file.write_text(json.dumps(config_of(group, service.url, sidecar.port, overrides)), encoding="utf-8")

    def queue() -> tuple[int, int]:
        return tuple(int(sidecar.metric(f'reconsume_{name}{{topic="{group.main}"}}')) for name in NAMES)  # type: ignore[return-value]

    def partition() -> Any:
        return next(one for one in sidecar.status()["partitions"] if one["topic"] == group.main)

    def retries(*words: str) -> list[str]:
        result = reconsume("retries", *words, "-o", "jsonl", "-c", file)
        assert result.exit_code == 0, result.stderr
        return result.stdout.splitlines()

    assert queue() == (0, 0)
    produce(group.bootstrap, group.main, [Out(b"bad", KEY), Out(b"bad", b"b"), *[Out(b"good", KEY)] * 73])
    sidecar.until(lambda: queue() == (2, 73), 20, "both keys and what is behind one of them are counted")
    keys = sidecar.status()["keys"]
    assert (keys["blocked"], keys["behind"]) == (2, 73)
    assert 0 <= keys["oldest_for"] < 60_000
    assert {name: partition()[name] for name in ("blocked_keys", "behind_records")} == {
        "blocked_keys": 2,
        "behind_records": 73,
    }
    warning = json.loads(sidecar.wait_log('"queue-fills"'))
    assert (warning["partition"], warning["most"]) == (f"{group.main}[0]", BOUND)
    assert warning["waiting"] >= 75
    assert next(iter(warning["keys"])) == f"{group.main}:0:0"
    produce(group.bootstrap, group.main, [Out(b"good", KEY)] * 30)
    sidecar.until(lambda: queue() == (2, 103), 20, "as many wait as may")
    produce(group.bootstrap, group.main, [Out(b"good", KEY)] * 30)
    sidecar.until(lambda: partition()["not_fetched"] == "behind-keys", 20, "the partition is paused at its bound")
    assert sidecar.metric(f'reconsume_queue_fill_ratio{{topic="{group.main}"}}') >= 1
    asked = [text for text in expressions().values() if any(metric in QUEUED for metric, *_ in uses(text))]
    assert len(asked) >= 4
    assert [fault for text in asked for fault in faults(text, exported_by(sidecar.metrics()))] == []
    listed = [json.loads(line) for line in retries("list", "--blocked")]
    assert {row["id"]: (row["key"], row["behind"]) for row in listed} == {
        f"{group.main}:0:0": (KEY.decode(), 103),
        f"{group.main}:0:1": ("b", 0),
    }
    found = [json.loads(line) for line in retries("list", "--key", KEY.decode(), "--limit", "200")]
    assert {row["id"]: row["where"] for row in found} == {
        f"{group.main}:0:0": "waiting",
        **{f"{group.main}:0:{offset}": "behind" for offset in range(2, 105)},
    }
    well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 135, 60, "all are taken once their keys are free")
    sidecar.until(lambda: queue() == (0, 0), 20, "nothing waits any more")
    assert sidecar.status()["keys"] == {"blocked": 0, "behind": 0, "parked": 0, "oldest_for": None}
    assert sidecar.log().count('"queue-fills"') == 1
    assert KEY.decode() not in sidecar.log()
    assert sidecar.stop().code == 0
