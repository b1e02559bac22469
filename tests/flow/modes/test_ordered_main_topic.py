"""The main topic changes under keys that wait in its queue: partitions are added, its records are deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import SECONDS, Out, add_partitions, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.sidecar.config import Config

pytestmark = pytest.mark.long

LADDER: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 100},
    "kafka": {"topic.metadata.refresh.interval.ms": 2_000},
}


def one_after_the_other(first: list[Delivery], second: list[Delivery]) -> bool:
    return len(second) == 1 and second[0].received >= (first[-1].answered or 0)


@pytest.mark.parametrize("first", [True, False], ids=["queue first", "queue late"])
def test_partitions_are_added_under_waiting_keys_and_the_queue_gets_them_first_or_late(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path, first: bool
) -> None:
    """What fails in a partition that the queue lacks waits in memory, is tried once more if its owner is killed, and
    goes by the ladder as soon as the queue has the partition. The other partition's keys notice nothing."""
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 1), BadFails()
    service = start_service(bad)

    def grow(topic: str) -> None:
        add_partitions(group.bootstrap, topic, 2)

    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    old = put(group, (b"bad:0", b"a"), (b"behind:0", b"a"))
    sidecar.until(lambda: len(service.ledger.of(old[0])) > 2, 60, "the head waits")
    for topic in (group.queues[0], group.main) if first else (group.main,):
        grow(topic)
    places = produce(group.bootstrap, group.main, [Out(b"bad:1", b"b", (), 1), Out(b"behind:1", b"b", (), 1)])
    new = [f"{group.main}:{number}:{offset}" for number, offset in places]
    sidecar.until(lambda: bool(service.ledger.of(new[0])), 60, "the added partition is delivered")
    for ident in (old[0], *new[:1]) if first else (old[0],):
        tried = len(service.ledger.of(ident))
        sidecar.until(lambda ident=ident, tried=tried: len(service.ledger.of(ident)) > tried, 60, "it is tried again")
    sidecar.kill()
    sidecar.start()
    tried = len(service.ledger.of(old[0]))
    sidecar.until(lambda: len(service.ledger.of(old[0])) > tried, 60, "the next owner goes on")
    if not first:
        grow(group.queues[0])
    sidecar.until(lambda: max(d.times for d in service.ledger.of(new[0])) > 1, 60, "it waits by the ladder")
    bad.well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 4, 60, "all are taken")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    for head, behind in (old, new):
        assert one_after_the_other(service.ledger.of(head), service.ledger.of(behind))
    assert violations(group, tmp_path, LADDER) == []


def test_what_waits_goes_on_where_retention_has_deleted_the_records_that_it_is_copied_from(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Under the owner that runs, under the next one, and where Kafka has forgotten all progress meanwhile."""
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 1), BadFails()
    service, admin = start_service(bad), AdminClient({"bootstrap.servers": group.bootstrap})
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    idents = put(group, (b"bad:0", b"a"), (b"behind:0", b"a"), (b"bad:1", b"b"), (b"behind:1", b"b"))

    def is_tried_again() -> None:
        tried = len(service.ledger.of(idents[0]))
        sidecar.until(lambda: len(service.ledger.of(idents[0])) > tried, 60, "the head is tried again")

    is_tried_again()
    sidecar.until(lambda: sidecar.key_count("behind") == 2, 30, "all wait")
    for deleted in admin.delete_records([TopicPartition(group.main, 0, 4)]).values():
        deleted.result(SECONDS)
    is_tried_again()
    sidecar.kill()
    sidecar.start()
    is_tried_again()
    assert sidecar.stop().code == 0
    for forgotten in admin.delete_consumer_groups([group.group]).values():
        forgotten.result(SECONDS)
    bad.well.set()
    sidecar.start()
    sidecar.until(lambda: len(service.ledger.taken()) == 4, 60, "all are taken")
    assert sidecar.stop().code == 0
    for head, behind in (idents[:2], idents[2:]):
        assert one_after_the_other(service.ledger.of(head), service.ledger.of(behind))
