"""A backlog behind records that are never answered: it arrives at once after each start."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.core.record import Partition
from tests.flow.conftest import FreshGroup
from tests.flow.faults.test_misplaced_progress import progress
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.counted_service import CountedService
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess

RECORDS, HUNG = 25_000, range(5)
WITHIN = 30.0
"""Seconds after a start in which all others must have arrived; more only as long as a slow machine goes on to deliver
them. 8 612 had not after two minutes, because each instance had to hear for three minutes that no other form of
progress was in use."""


@pytest.mark.long
def test_25_000_records_behind_five_hanging_ones_arrive_within_30_s_of_a_start_and_after_two_kills(
    new_group: FreshGroup, tmp_path: Path
) -> None:
    """Given one partition that begins with five records without an answer, and an owner that is killed a third and two
    thirds of the way, then what it has done is not lost, and the next one goes on behind it."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    source = Partition(group.main, 0)
    produce(group.bootstrap, group.main, [Out(b"%d" % number, partition=0) for number in range(RECORDS)])
    overrides: Config = {
        "kafka": {"bootstrap.servers": group.bootstrap, "session.timeout.ms": 6_000},
        "deliver": {"timeout": "1h", "outage_failures": None, "concurrency": 256},
        # By default what may have crashed two owners in a row goes out alone, and hangs for 30 s each (contract 1.10).
        "retry": {"max_deaths": 4},
    }
    with CountedService(RECORDS, HUNG) as service:

        def arrived() -> int:
            return RECORDS - service.came.count(0)

        def done() -> int:
            return len(progress(group, group.group, source).done)

        committed = 0
        for aim in (RECORDS // 3, 2 * RECORDS // 3, RECORDS):
            before = committed
            with SidecarProcess(group, service.url, tmp_path, overrides=overrides, fresh=True) as sidecar:
                sidecar.until(lambda aim=aim: arrived() >= aim, WITHIN, f"{aim} of {RECORDS} have arrived")
                sidecar.until(lambda before=before: done() > before, WITHIN, "it commits")
                if aim < RECORDS:
                    committed = done()
                    sidecar.kill()
                    continue
                sidecar.until(lambda: done() == RECORDS - len(HUNG), WITHIN, "all but the hung ones are done")
                assert progress(group, group.group, source).next == 0
                service.let()
                sidecar.until(lambda: progress(group, group.group, source).next == RECORDS, WITHIN, "the rest is done")
                assert sidecar.stop().code == 0
    assert all(service.came)
