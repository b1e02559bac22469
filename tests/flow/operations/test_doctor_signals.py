"""`doctor` learns of a running group's failures from what its instances tell, through the policy topic."""

from __future__ import annotations

import json
from pathlib import Path

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.topic_io import produce
from tests.support.service.behaviours import FAIL
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, with_policy

HEARD = 60
"""Seconds in which an instance tells of what is urgent (15 s), with much to spare."""


def test_failures_and_dead_letters_of_a_running_group_are_found_by_doctor(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    service = start_service(lambda _request: FAIL)
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "retry": {"max_reconsume_times": 0}})
    produce(group.bootstrap, group.main, [b"%d" % number for number in range(40)])

    def verdicts() -> dict[str, str]:
        checks = json.loads(for_group(tmp_path, group, "doctor", "-o", "json").stdout)
        return {check["check"]: check["status"] for check in checks if check["check"] in ("failures", "dead-letters")}

    wanted = {"failures": "fail", "dead-letters": "warn"}
    sidecar.until(lambda: verdicts() == wanted, HEARD, "doctor has heard of the failures")
    assert "policy-bad-records" not in sidecar.log(), "the instance hears what it tells itself"
