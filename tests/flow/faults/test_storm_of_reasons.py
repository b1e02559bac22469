"""A service that fails each record with a status, a reason and a text of its own: what is kept does not grow."""

from __future__ import annotations

import json

import pytest

from reconsume.sidecar.core.reason_classes import MOST, OTHER
from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import FAILED
from tests.support.service.behaviours import Answer, Behaviour, Request, verdict

COUNT = 4_000
SIZE = 256 * 1024
"""Bytes of metrics, of `/status` and of the log, at most."""


def own(request: Request) -> Behaviour:
    """Half of the records get a status of 600, the others a class and a text of their own."""
    number = int(request.value or b"0")
    if number % 2:
        return Answer(400 + number // 2 % 600, means=FAILED)  # 429 is a failure here
    reason = f"order-{number}" if number % 4 else f"order {number} was late by {number} ms"
    return verdict(f"dead-letter; reason={reason}" if number % 3 else f"retry; reason={reason}")


@pytest.mark.long  # unit/core/test_reason_classes.py and unit/observability/test_repeats.py in every run
def test_a_storm_of_reasons_leaves_metrics_sums_status_and_log_bounded(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(own)
    overrides = {"retry": {"max_reconsume_times": 0}, "deliver": {"throttle_statuses": []}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    before = len(sidecar.metrics().splitlines())
    produce(group.bootstrap, group.main, [Out(b"%d" % number) for number in range(COUNT)])
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == COUNT, 60, "all are dead letters")
    metrics = sidecar.metrics()
    assert len(metrics.splitlines()) - before <= MOST + 20
    assert max(len(metrics), len(json.dumps(sidecar.status())), len(sidecar.log())) < SIZE
    assert sidecar.stop().code == 0
    reasons = {json.loads(row.value or b"")["reason"] for row in dump(group.bootstrap, group.names.events)}
    statuses = {reason for reason in reasons if reason.startswith("http-")}
    assert len({reason for reason in statuses if reason[-1].isdigit()}) <= MOST * 2, "each lane keeps its own"
    assert len(reasons - statuses) <= 2 * MOST + 3
    assert OTHER in reasons
    evidence = collect(group, service.ledger)
    assert check(evidence).dead_lettered == COUNT
    texts = {letter.ours[wire.RETRY_REASON] for letter in evidence.dead}
    assert len(texts) > COUNT // 2, "what the service said is still with each letter"
