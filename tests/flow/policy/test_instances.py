"""`reconsume instances`: who runs, on what, and by whose settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.topic_io import produce
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, SECONDS, with_policy

Rows = dict[str, dict[str, Any]]


def test_a_running_a_killed_and_a_stopped_instance_are_live_silent_and_gone(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    service = start_service(by_name({"flaky": (FAIL, OK)}))

    def listed() -> Rows:
        shown = for_group(tmp_path, group, "instances")
        assert shown.exit_code == 0, shown.stderr
        return {row["instance"]: row for row in map(json.loads, shown.stdout.splitlines())}

    def until(holds: Callable[[Rows], bool], what: str) -> Rows:
        first.until(lambda: holds(listed()), SECONDS, what)
        return listed()

    first = start_sidecar(group, service.url, "pod-0", CALM)
    produce(group.bootstrap, group.main, [b"x:%d" % number for number in range(20)])
    tags = {"topics": [{"name": group.main, "tags": "A"}], "retry": {"max_reconsume_times": 7}}
    killed = start_sidecar(group, service.url, "pod-1", {**CALM, **tags})
    until(lambda rows: "pod-1" in rows and rows["pod-1"]["follows"] == rows["pod-1"]["settings"], "it has a heartbeat")
    killed.kill()
    third = start_sidecar(group, service.url, "pod-2", CALM)
    rows = until(lambda rows: rows["pod-0"]["lag"] == 0 and rows.get("pod-2", {}).get("lag") == 0, "all are there")
    row = rows["pod-0"]
    assert (row["state"], row["topics"], row["tags"], row["mode"]) == ("live", [group.main], {}, "push")
    assert (row["pace"], row["order"], row["batch"]) == ("open", "none", 1)
    assert group.main in row["reads"]
    assert row["version"]
    assert abs(time.time() * 1000 - row["as_of"]) < 120_000
    assert rows["pod-1"]["tags"] == {group.main: "A"}
    assert rows["pod-1"]["settings"] != row["settings"] == rows["pod-2"]["settings"]
    assert row["follows"] == rows["pod-1"]["settings"], "they are the newest"
    until(lambda rows: rows["pod-1"]["state"] == "silent", "it is no member any more")
    third.stop()
    assert listed().keys() == {"pod-0", "pod-1"}
