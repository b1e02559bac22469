"""A service that asks for time on a real broker: it gets it, nothing is spent, and the pace comes back step by step."""

from __future__ import annotations

import math
import time

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import produce
from tests.support.proof.ledger import THROTTLED, TOOK
from tests.support.service.behaviours import Answer, Behaviour, Request
from tests.support.sidecar.pace_run import (
    ALONE,
    FULL,
    LOAD,
    TAKES,
    Run,
    crowd,
    finish,
    own_partitions,
    pace_is,
    values,
    wall,
)

BUSY = 2.5
"""Seconds for which the service asks for time."""
LATER = 1_000
"""ms that it asks for each time."""
HOURS = b"greedy:0"


@pytest.fixture(scope="module")
def throttled(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """The service asks for time for a while, by 429 and by 503; one record's answer asks for a day."""
    group = create_group(new_group())
    busy = [math.inf]

    def script(request: Request) -> Behaviour:
        if request.value == HOURS:
            return Answer(503, (("Retry-After", "86400"),))
        if time.monotonic() > busy[0]:
            return Answer(429 if len(request.id) % 2 else 503, (("Retry-After", "1"),), after=TAKES)
        return Answer(after=TAKES)

    service = start_service(script)
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"concurrency": FULL}})
    own_partitions(sidecar)
    produce(group.bootstrap, group.main, [HOURS, *values("good", LOAD)])
    sidecar.until(lambda: len(service.ledger.taken()) > 4 * FULL, 15, "it is at full pace")
    busy[0] = begun = time.monotonic()
    pace_is(sidecar, "throttled")
    assert sidecar.status()["pace_reason"].startswith("the service asked for ")
    sidecar.until(lambda: time.monotonic() - begun > BUSY, BUSY + 2, "the service had its time")
    back, busy[0] = wall(), math.inf
    sidecar.until(lambda: len(service.ledger.taken()) == LOAD, 30, "all records are taken")
    assert sidecar.metric('reconsume_pace_changes_total{state="throttled"}') >= 1
    assert sidecar.status()["pace"] == "open"
    return finish(group, service, sidecar, back)


def test_a_throttle_spends_nothing_and_waits_for_as_long_as_it_was_asked_to(throttled: Run) -> None:
    assert throttled.spent == 0
    assert (throttled.report.committed, throttled.report.waiting) == (LOAD, 1)  # the greedy one is held
    answered: dict[str, int] = {}
    for delivery in throttled.evidence.deliveries:
        assert delivery.received - answered.get(delivery.id, 0) >= LATER
        if delivery.means == THROTTLED and delivery.answered is not None:
            answered[delivery.id] = delivery.answered


def test_a_throttled_service_is_asked_by_fewer_and_fewer_and_then_hardly_at_all(throttled: Run) -> None:
    """Halved each round: 32 + 16 + … + 1 or so, and then one a second. At full pace it were thousands."""
    asked = sum(delivery.means == THROTTLED for delivery in throttled.evidence.deliveries)
    assert FULL <= asked <= 3 * FULL


def test_after_a_throttle_the_pace_rises_by_one_each_round_to_full(throttled: Run) -> None:
    """Those that were told to wait fall due together, and are no herd: k are out after k (k − 1) / 2 answers."""
    since = [delivery for delivery in throttled.since() if delivery.means == TOOK]
    seen = crowd(since)
    assert all(together <= 2 + math.sqrt(2 * answered) for together, answered in seen)
    assert ALONE - 2 <= max(together for together, _ in seen) <= ALONE
