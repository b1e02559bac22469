"""A partition that stands among others is seen by how long its oldest record waits, whatever the cause."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.process import SidecarProcess

OLD = 15.0
"""Seconds after which a record is clearly old: the ends are looked at every ten."""


def undelivered_for(sidecar: SidecarProcess, topic: str) -> dict[int, float]:
    """By partition, what `/status` says."""
    partitions = sidecar.status()["partitions"]
    return {one["partition"]: one["undelivered_for"] for one in partitions if one["topic"] == topic}


def reasons(sidecar: SidecarProcess, topic: str) -> dict[int, tuple[str | None, str | None]]:
    """By partition, why its oldest waiting record is not delivered, and why it is not fetched."""
    partitions = sidecar.status()["partitions"]
    return {one["partition"]: (one["not_delivered"], one["not_fetched"]) for one in partitions if one["topic"] == topic}


def metric(sidecar: SidecarProcess, name: str, topic: str, number: int) -> float:
    return sidecar.metric(f'reconsume_{name}{{partition="{number}",topic="{topic}"}}')


def test_an_open_transaction_of_another_program_on_a_main_topic_is_seen(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """R01: readers of committed records stop before it, and do not see what is behind."""
    group = create_group(new_group(), partitions=2)
    service = start_service(lambda _request: OK)
    sidecar = start_sidecar(group, service.url)
    plain = Producer({"bootstrap.servers": group.bootstrap})
    foreign = Producer({"bootstrap.servers": group.bootstrap, "transactional.id": f"foreign-{group.main}"})
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(group.main, b"open", partition=0)
    foreign.flush(30)
    for number in (0, 1):
        plain.produce(group.main, f"behind-{number}".encode(), partition=number)
    plain.flush(30)
    sidecar.until(lambda: undelivered_for(sidecar, group.main).get(0, 0) > OLD, 60, "the partition is old")
    assert undelivered_for(sidecar, group.main)[1] == 0
    assert metric(sidecar, "undelivered_seconds", group.main, 0) > OLD
    assert reasons(sidecar, group.main) == {0: ("unread", "transaction"), 1: (None, None)}
    assert sidecar.metric('reconsume_not_fetched_partitions{reason="transaction"}') == 1
    assert metric(sidecar, "progress_lag", group.main, 0) == 2
    foreign.abort_transaction(30)
    sidecar.until(lambda: undelivered_for(sidecar, group.main).get(0) == 0, 60, "it is delivered again")
    # A first delivery in progress does not wait any more, and may still be on its way.
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 60, "both are taken")


def test_a_partition_whose_first_record_fails_in_place_forever_is_seen(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """R05: it is fetched, and delivered again and again, and the other partitions go on."""
    group = create_group(new_group(), partitions=2)
    service = start_service(by_name({"poison": (FAIL,)}))
    overrides = {"deliver": {"order": "partition", "outage_failures": None}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    producer = Producer({"bootstrap.servers": group.bootstrap})
    producer.produce(group.main, b"poison:0", partition=0)
    for number in (0, 1):
        producer.produce(group.main, f"good:{number}".encode(), partition=number)
    producer.flush(30)
    sidecar.until(lambda: undelivered_for(sidecar, group.main).get(0, 0) > OLD, 60, "the partition is old")
    assert undelivered_for(sidecar, group.main)[1] == 0
    assert metric(sidecar, "undelivered_seconds", group.main, 0) > OLD
    assert reasons(sidecar, group.main)[0][0] == "retried"
    assert sidecar.metric('reconsume_not_delivered_partitions{reason="retried"}') == 1


def test_a_hold_and_its_release_leave_a_failing_record_as_old_as_it_was(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a key that is retried in place, when an operator holds it and lets it go, then its age goes on."""
    group = create_group(new_group(), partitions=1, also=(Kind.POLICY,))
    service = start_service(by_name({"poison": (FAIL,)}))
    ordered = {"order": "key", "outage_failures": None}
    sidecar = start_sidecar(group, service.url, overrides={"deliver": ordered})
    command = {"deliver": {"url": "http://127.0.0.1:1/", **ordered}}
    producer = Producer({"bootstrap.servers": group.bootstrap})
    producer.produce(group.main, b"poison:0", b"ada", partition=0)
    producer.produce(group.main, b"good:0", b"ada", partition=0)
    producer.flush(30)
    sidecar.until(lambda: undelivered_for(sidecar, group.main).get(0, 0) > OLD, 60, "the key is old")

    held = for_group(tmp_path, group, "hold", "--key", "ada", "--for", "1h", "--why", "looking", "--yes", **command)
    assert held.exit_code == 0, held.stderr
    sidecar.until(lambda: undelivered_for(sidecar, group.main).get(0) == 0, 60, "it is held, and does not wait")
    assert reasons(sidecar, group.main)[0][0] == "held"
    before = len(service.ledger.deliveries())
    released = for_group(tmp_path, group, "release", "--all", "--yes", **command)
    assert released.exit_code == 0, released.stderr

    sidecar.until(lambda: len(service.ledger.deliveries()) > before, 60, "it is tried again")
    assert undelivered_for(sidecar, group.main)[0] > OLD, "nothing was done since it began to wait"
