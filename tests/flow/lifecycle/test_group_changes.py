"""The group changes while records wait: pods come and go, a start is broken off, the log is cut, a topic is missing."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import TOOK
from tests.support.service.behaviours import FAIL, OK, Answer, by_name, verdict
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

PARTITIONS = 6
WAIT = 15_000
"""ms. Longer than the second pod stays: its head is far off, so a level's partitions are parked."""
WAITING = 60


def committed(group: GroupTopics) -> dict[int, int]:
    """The group's offsets of its main topic, of partitions that have one."""
    asking = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    found = asking.committed([TopicPartition(group.main, number) for number in range(PARTITIONS)], timeout=SECONDS)
    asking.close()
    return {place.partition: place.offset for place in found if place.offset >= 0}


def test_no_retry_waits_for_ever_after_one_pod_has_joined_and_left(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """20 of 60 waiting retries stayed undelivered: their partitions came back to a client that kept them paused."""
    group = create_group(new_group(delays=(1_000, WAIT)), PARTITIONS)
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    ladder = {"retry": {"ladder": [f"{WAIT}ms"], "levels": ["1s", f"{WAIT}ms"]}}
    stays = start_sidecar(group, service.url, "pod-0", ladder)
    produce(group.bootstrap, group.main, [Out(b"flaky:%d" % number, partition=number % 6) for number in range(WAITING)])
    stays.until(lambda: len(service.ledger.deliveries()) == WAITING, 20, "all have failed once")
    level = group.names.level(WAIT, group.main)

    def not_due(pod: SidecarProcess) -> int:
        partitions = pod.status()["partitions"]
        return sum(partition["topic"] == level and partition["not_fetched"] == "not-due" for partition in partitions)

    stays.until(lambda: not_due(stays) == PARTITIONS, 10, "the level's partitions wait")
    goes = start_sidecar(group, service.url, "pod-1", ladder)
    goes.until(lambda: not_due(goes) > 0, 10, "the other pod has some of them, and waits")
    assert goes.stop().code == 0
    stays.until(lambda: len(service.ledger.taken()) == WAITING, 45, "all retries are delivered")
    assert stays.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.duplicates) == (WAITING, 0, 0), report


def test_a_group_that_begins_at_the_latest_record_skips_nothing_in_a_crash(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """An idle partition's start is committed at once; records that come while no sidecar runs are delivered."""
    group = create_group(new_group(), PARTITIONS)
    produce(group.bootstrap, group.main, [Out(b"old", partition=number) for number in range(PARTITIONS)])
    service = start_service(by_name({}))
    first = start_sidecar(group, service.url, overrides={"start": "latest"})
    first.until(lambda: committed(group) == dict.fromkeys(range(PARTITIONS), 1), 15, "every start is committed")
    first.kill()
    produce(group.bootstrap, group.main, [Out(b"new", partition=number) for number in range(PARTITIONS)])
    second = start_sidecar(group, service.url, overrides={"start": "latest"})
    second.until(lambda: len(service.ledger.taken()) == PARTITIONS, 30, "what came meanwhile is delivered")
    assert second.stop().code == 0
    assert {delivery.value for delivery in service.ledger.deliveries()} == {b"new"}


def counts(service: Service, *names: str) -> dict[str, int]:
    """How many records have been taken whose values begin with each name."""
    taken = {delivery.id: delivery.value or b"" for delivery in service.ledger.deliveries() if delivery.means == TOOK}
    return {name: sum(value.startswith(name.encode()) for value in taken.values()) for name in names}


@pytest.mark.long  # sim/test_group_sim.py cuts logs in every run
def test_what_is_under_way_when_the_log_is_cut_is_retried(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """10 records are with the service, and fail, after the log was cut behind them; 5 that nobody had read are lost."""
    group = create_group(new_group(), 1)
    warm, slow, unread, left = 100, 10, 5, 3
    service = start_service(by_name({"slow": (Answer(500, after=8.0), OK)}))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"timeout": "30s"}})
    produce(group.bootstrap, group.main, [b"warm"] * warm)  # else the slow start lets out one a second
    sidecar.until(lambda: len(service.ledger.taken()) == warm, 15, "the slow start is over")
    produce(group.bootstrap, group.main, [b"slow:%d" % number for number in range(slow)])
    sidecar.until(lambda: sidecar.metric("reconsume_in_flight") == slow, 15, "all are with the service")
    sidecar.pause()
    produce(group.bootstrap, group.main, [b"gone"] * unread + [b"left"] * left)
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.main, 0, warm + slow + unread)]).values():
        future.result(SECONDS)
    sidecar.cont()
    ids = {"slow": slow, "left": left}
    sidecar.until(lambda: counts(service, *ids) == ids, 40, "the retries and what is left are taken")
    # What the broker had sent before it was deleted is not lost.
    sent = counts(service, "gone")["gone"]
    assert sidecar.metric(f'reconsume_records_lost_total{{topic="{group.main}"}}') == unread - sent
    assert sidecar.stop().code == 0


def test_a_stopped_partition_leaves_the_room_to_the_others(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """The DLQ is missing: what waits behind a refused record of one partition is ten times the lane's room."""
    group = new_group()
    create_group(group, leave_out=[group.dlq])
    service = start_service(by_name({"dead": (verdict("dead-letter"),)}))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"buffer_memory": "1MiB", "concurrency": 4}})
    large = b"good:" + b"x" * 100_000
    produce(group.bootstrap, group.main, [Out(b"dead:", partition=0), *[Out(large, partition=0)] * 100])
    sidecar.until(lambda: any(one["refusal"] for one in sidecar.status()["partitions"]), 20, "the partition is stopped")
    before = len(service.ledger.taken())
    produce(group.bootstrap, group.main, [Out(b"good:%d" % number, partition=1) for number in range(40)])

    def others() -> int:
        return sum(origin.split(":")[1] == "1" for origin in service.ledger.taken())

    sidecar.until(lambda: others() == 40, 20, f"the other partition flows ({before} of the first had gone)")
    assert sidecar.stop().code == 0
