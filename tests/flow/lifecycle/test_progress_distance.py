"""One record that is never answered, in a partition that goes on: what a kill of its sidecar costs."""

from __future__ import annotations

import pytest

from sidecar.core.progress_bounds import SPAN
from sidecar.core.record import Partition
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.faults.test_misplaced_progress import progress
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import HANG, OK, Behaviour, Request
from tests.support.sidecar.policy import CALM

RECORDS, HUNG = SPAN + 4_000, 7
"""Records of a partition, and the one that is never answered."""
ALLOWED = 240.0
"""Seconds: an instance has to know for three minutes that no older one lives."""


def hangs(request: Request) -> Behaviour:
    return HANG if request.value == b"%d" % HUNG else OK


@pytest.mark.long
def test_behind_a_hung_record_a_partition_goes_on_and_a_kill_repeats_that_record_alone(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given more records behind an unanswered one than a bitmap has bits, when the sidecar is killed, then the next one
    delivers the hung record and what came later, and nothing that was done."""
    group = create_group(new_group(), partitions=1)
    create_topic(group.bootstrap, group.names.policy)
    source = Partition(group.main, 0)
    produce(group.bootstrap, group.main, [Out(b"%d" % number, partition=0) for number in range(RECORDS)])
    service = start_service(hangs)
    overrides = {
        **CALM,
        "kafka": {"bootstrap.servers": group.bootstrap, "session.timeout.ms": 6_000},
        "deliver": {"timeout": "10m"},
    }
    first = start_sidecar(group, service.url, overrides=overrides)
    first.until(lambda: len(service.ledger.taken()) == RECORDS - 1, ALLOWED, "all others are done")
    first.until(lambda: len(progress(group, group.group, source).done) == RECORDS - HUNG - 1, 10, "Kafka knows it")
    assert progress(group, group.group, source).next == HUNG
    first.kill()
    produce(group.bootstrap, group.main, [Out(b"later", partition=0)])
    well = start_service(lambda _: OK)
    second = start_sidecar(group, well.url, overrides=overrides)
    await_quiet(group, ALLOWED)
    assert sorted(delivery.value or b"" for delivery in well.ledger.deliveries()) == [b"7", b"later"]
    second.stop()
    assert progress(group, group.group, source).next == RECORDS + 1
