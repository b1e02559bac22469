"""Outages on a real broker: nothing is lost, nothing is spent on what was not delivered, and nothing is overrun.

`SOAK_OUTAGE=60 pytest tests/flow/pace/test_pace.py` keeps the service away for a minute.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import produce
from tests.support.proof.ledger import FAILED
from tests.support.service.behaviours import FAIL, by_name
from tests.support.sidecar.pace_run import (
    ALONE,
    FULL,
    LOAD,
    Run,
    crowd,
    finish,
    own_partitions,
    pace_is,
    slowly,
    values,
    wall,
)

AWAY = float(os.environ.get("SOAK_OUTAGE", "15"))
"""Seconds that the service is down."""
ROW = 20
"""Failures in a row that are an outage."""
pytestmark = pytest.mark.timeout(AWAY + 600)


@pytest.fixture(scope="module")
def refused(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """The service goes down in order under load, stays away, and comes back."""
    group = create_group(new_group(), partitions=1)  # shares of several partitions are rounded: 27 or 28 are out then
    service = start_service(slowly)
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"concurrency": FULL}})
    own_partitions(sidecar)
    produce(group.bootstrap, group.main, values("good", LOAD))
    sidecar.until(lambda: service.in_flight == ALONE, 15, "the slow start is over")
    service.retire(ALONE)
    gone, before = time.monotonic(), wall()
    pace_is(sidecar, "outage")
    status = sidecar.status()
    assert status["pace_reason"] == "connection-refused"
    assert before - 2_000 < status["pace_since"] <= wall()
    sidecar.until(lambda: time.monotonic() - gone > AWAY, AWAY + 5, "the outage is over")
    assert len(service.ledger.taken()) < LOAD / 2, "there is no load left"
    assert sidecar.metric('reconsume_pace{state="open"}') == 0
    probes = sidecar.metric('reconsume_pace_changes_total{state="probing"}')
    assert 4 <= probes <= 8 + AWAY / 5
    back = wall()
    service.up()
    sidecar.until(lambda: len(service.ledger.taken()) == LOAD, 30, "all records are taken")
    assert sidecar.status()["pace"] == "open"
    assert sidecar.status()["pace_reason"] is None
    return finish(group, service, sidecar, back)


def test_a_service_that_is_down_costs_no_retry_and_no_dead_letter(refused: Run) -> None:
    assert refused.spent == 0
    assert refused.evidence.dlq == ()
    assert (refused.report.committed, refused.report.deliveries) == (LOAD, LOAD)


def test_after_an_outage_each_answer_lets_one_more_out(refused: Run) -> None:
    """No herd: with the service are never more than one and one for each answer that it has given since."""
    seen = crowd(refused.since())
    assert all(together <= 1 + answered for together, answered in seen[:FULL])
    assert ALONE - 2 <= max(together for together, _ in seen) <= ALONE


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(refused: Run) -> None:
    assert refused.events() == ["pace-outage", "pace-open"]
    end = next(line for line in refused.log.splitlines() if "pace-open" in line)
    assert "was=outage" in end
    assert float(end.partition("seconds=")[2].split()[0]) >= AWAY - 1
    assert int(end.partition("waiting=")[2].split()[0]) > LOAD / 4


@pytest.fixture(scope="module")
def failing(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """The service works, then answers 500 to everything, then works again."""
    group = create_group(new_group())
    service = start_service(slowly)
    overrides = {"deliver": {"concurrency": 8, "outage_failures": ROW, "outage_interval": "500ms"}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    produce(group.bootstrap, group.main, values("good", LOAD))
    sidecar.until(lambda: len(service.ledger.taken()) > 50, 15, "it works")
    service.script = lambda _request: FAIL
    pace_is(sidecar, "outage")
    assert sidecar.status()["pace_reason"] == f"{ROW} failures in a row, the last http-500"
    probes = 'reconsume_pace_changes_total{state="probing"}'
    sidecar.until(lambda: sidecar.metric(probes) >= 8, 15, "eight probes have failed")
    back = wall()
    service.script = slowly
    sidecar.until(lambda: len(service.ledger.taken()) == LOAD, 30, "all records are taken")
    assert sidecar.status()["pace"] == "open"
    return finish(group, service, sidecar, back)


@pytest.mark.long  # sim/test_outage_sim.py tells it in every run
def test_a_service_that_fails_everything_is_asked_by_one_at_a_time_and_each_failure_counts(failing: Run) -> None:
    failed = sorted(d.received for d in failing.evidence.deliveries if d.means == FAILED)
    assert failing.spent == len(failed)
    probes = [received for received in failed if received - failed[0] > 1_000]  # those before come after shorter pauses
    assert len(probes) >= 3
    assert min(later - earlier for earlier, later in pairwise(probes)) >= 490
    assert failing.evidence.dlq == ()
    assert failing.report.committed == LOAD
    assert failing.events() == ["pace-outage", "pace-open"]


def test_one_poison_record_starts_no_outage(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a record that always fails, and no other to succeed between, then it is dead-lettered like any."""
    group = create_group(new_group())
    service = start_service(by_name({"poison": (FAIL,)}))
    overrides = {"deliver": {"outage_failures": 3}, "retry": {"ladder": ["1s"], "max_reconsume_times": 3}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    produce(group.bootstrap, group.main, values("poison", 1))
    until(lambda: len(service.ledger.deliveries()) == 4, 20, "it has had all its attempts")
    assert sidecar.metric('reconsume_pace_changes_total{state="outage"}') == 0
    run = finish(group, service, sidecar, 0)
    assert (run.report.dead_lettered, run.spent, run.events()) == (1, 3, [])
