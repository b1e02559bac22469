"""Brokers that take less metadata with an offset than progress may need: found out before the first delivery."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import LONGEST, NEEDED, decode, encode
from reconsume.sidecar.core.record import Partition
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.lifecycle.next_version import leave_progress, left_progress
from tests.support.kafka.broker import embedded
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import OK
from tests.support.sidecar.policy import CALM, SECONDS


@pytest.fixture(scope="module")
def tight() -> Iterator[str]:
    """A cluster whose brokers take one byte less than is needed."""
    with embedded(properties={"offset.metadata.max.bytes": NEEDED - 1}) as kafka:
        yield kafka.bootstrap


def test_where_the_brokers_take_too_little_the_process_ends_with_78_and_has_delivered_nothing(
    tight: str, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(fresh_group(tight, 1, (1_000,)), partitions=2)
    produce(tight, group.main, [Out(b"x", partition=part) for part in range(2) for _ in range(20)])
    service = start_service(lambda _: OK)
    sidecar = start_sidecar(group, service.url, overrides=CALM, wait=False)
    assert sidecar.wait(SECONDS).code == 78
    assert f"set offset.metadata.max.bytes to {NEEDED}" in sidecar.log()
    assert not service.ledger.deliveries()


def test_the_position_that_shows_it_is_committed_as_it_was_filled_up_to_what_brokers_must_take(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a partition that was done, then its position says the same in as many characters as may be needed, and the
    next record is delivered."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    here, taken_over = Partition(group.main, 0), Progress(12, clean=True, width=3, cycle=2)
    produce(group.bootstrap, group.main, [b"x"] * 12)
    leave_progress(group.bootstrap, group.group, {TopicPartition(*here, 12): encode(here, taken_over)})
    service = start_service(lambda _: OK)
    sidecar = start_sidecar(group, service.url, overrides=CALM)

    def left() -> str:
        return left_progress(group.bootstrap, group.group, group.main)

    sidecar.until(lambda: len(left()) == LONGEST, SECONDS, "the position is filled up")
    assert replace(decode(here, 12, left()), log=None) == taken_over
    produce(group.bootstrap, group.main, [b"x"])
    sidecar.until(lambda: decode(here, 13, left()).ours, SECONDS, "the next record is done")
    sidecar.stop()
    assert replace(decode(here, 13, left()), log=None) == replace(taken_over, next=13), "nothing of it is dropped"
    assert len(service.ledger.deliveries()) == 1
