"""An instance whose clock is hours off, and records with a time to come: each retry comes, and is counted once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.evidence import collect
from tests.support.proof.invariants import GRAIN, altered, contradicted, lost, miscounted
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.sidecar.config import config_of
from tests.support.sidecar.policy import with_policy
from tests.support.sidecar.process import REPOSITORY, SidecarProcess
from tests.support.sidecar.shifted_clock import shifted

HOURS = 3_600
AHEAD = 2 * HOURS
CASES = {"flaky": (FAIL, OK), "dead": (FAIL,), "asked": (verdict("retry; delay=6s"), OK), "fine": (OK,)}
EACH = 20
LEVEL = 5_000
"""ms. How old a copy is, an instance that is ahead knows within 3 s: shorter levels would be no good here."""
MOST_HOPS = 3
RETRY = {"retry": {"ladder": ["5s"], "max_reconsume_times": 1}}
FUTURE_MS = 50 * 60_000
"""A record's time is so far ahead: an hour is what a broker takes by default."""


def produced(group: GroupTopics) -> None:
    """Of each case some, every second one with a time that is still to come."""
    later = time.time_ns() // 1_000_000 + FUTURE_MS
    names = [name for name in CASES for _ in range(EACH)]
    produce(
        group.bootstrap, group.main, [Out(name.encode(), timestamp=later * (n % 2)) for n, name in enumerate(names)]
    )


@pytest.mark.long  # sim/test_group_sim.py and test_lane_sim.py shift clocks in every run
@pytest.mark.parametrize("seconds", [AHEAD, -AHEAD])
def test_a_clock_that_is_hours_off_loses_nothing_delays_nothing_and_is_named(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path, seconds: int
) -> None:
    """Given an instance ahead of the brokers or behind, then retries wait their seconds, and the dead are written."""
    group = with_policy(new_group(1, (LEVEL,)))
    service = start_service(by_name(CASES))
    produced(group)
    environ = shifted(seconds, tmp_path)
    with SidecarProcess(group, service.url, tmp_path, overrides=RETRY, fresh=True, environ=environ) as sidecar:
        sidecar.wait_ready()
        await_quiet(group, 40)
        clock = doctored(group, service.url, tmp_path)
        if seconds > 0:
            sidecar.wait_log("clock-ahead")
        assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    wrong = [*lost(evidence), *miscounted(evidence), *altered(evidence), *contradicted(evidence)]
    # To one that is ahead the first copies seem to be due, before it knows anything of the log: these hop once more.
    assert [found for found in wrong if seconds < 0 or not found.startswith("I2 twice")] == []
    assert max(len(chain) for life in evidence.lives.values() for chain in life.values()) <= MOST_HOPS
    assert len(service.ledger.taken()) == 3 * EACH
    assert [letter.times for letter in evidence.dead] == [1] * EACH
    assert {letter.ours[wire.RETRY_REASON] for letter in evidence.dead} == {b"http-500"}
    firsts = {delivery.id: delivery for delivery in evidence.deliveries if delivery.times == 0}
    waits = [d.received - (firsts[d.id].answered or 0) for d in evidence.deliveries if d.times]
    assert min(waits) + GRAIN >= LEVEL
    assert max(waits) < 4 * LEVEL
    assert clock["status"] == "fail"
    assert re.search(r"the clock of \S+ is 7(199|200)\.\d s", clock["finding"])
    assert ("ahead of" if seconds > 0 else "behind") in clock["finding"]


def doctored(group: GroupTopics, url: str, folder: Path) -> dict[str, str]:
    """What `doctor` says of the clocks of the instances, on a machine whose own clock is right."""
    file = folder / "reconsume.json"
    file.write_text(json.dumps(config_of(group, url, 8471)), encoding="utf-8")
    command = [sys.executable, "-m", "reconsume.sidecar", "doctor", "-o", "json", "-c", str(file)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return next(row for row in json.loads(done.stdout) if row["check"] == "clock")
