"""Broadcast on a real broker: every instance gets every record from its start on, and nothing is written anywhere."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, Out, add_partitions, create_topic, produce
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

PARTITIONS = 3
BROADCAST: dict[str, Any] = {"deliver": {"broadcast": True}}


def named(name: str, count: int) -> list[Out]:
    """Records `name:0`, `name:1`, … on all partitions in turn."""
    return [Out(f"{name}:{number}".encode(), partition=number % PARTITIONS) for number in range(count)]


def seen(service: Service, pod: str) -> Counter[str]:
    """How often a pod has delivered each record, by its value."""
    deliveries = service.ledger.deliveries()
    return Counter((d.value or b"").decode() for d in deliveries if d.path.endswith(pod))


def values(*wanted: list[Out]) -> Counter[str]:
    """Each of these records once."""
    return Counter((out.value or b"").decode() for outs in wanted for out in outs)


def until_seen(sidecar: SidecarProcess, service: Service, wanted: Counter[str]) -> None:
    """Wait until the sidecar's pod has delivered at least these."""
    sidecar.until(lambda: wanted <= seen(service, sidecar.pod), 20, f"{len(wanted)} records are delivered")


def mains_only(group: GroupTopics) -> GroupTopics:
    """Create the main topics, and no topic of the group's own."""
    for name in group.mains:
        create_topic(group.bootstrap, name, PARTITIONS)
    return group


def topics_of(group: GroupTopics) -> set[str]:
    """The topics on the broker whose names begin with the group's."""
    found = AdminClient({"bootstrap.servers": group.bootstrap}).list_topics(timeout=SECONDS).topics
    return {name for name in found if name.startswith(group.group)}


def groups_of(group: GroupTopics) -> set[str]:
    """The consumer groups on the broker whose names begin with the group's."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})  # who lets go of it ends what it asks
    found = admin.list_consumer_groups().result(SECONDS).valid
    return {one.group_id for one in found if one.group_id.startswith(group.group)}


def test_every_instance_gets_every_record_from_its_start_on_and_nothing_is_kept(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = mains_only(new_group())
    old, first, second, third = (named(name, 30) for name in ("old", "first", "second", "third"))
    service = start_service(lambda _request: OK)
    produce(group.bootstrap, group.main, old)
    pods = [start_sidecar(group, f"{service.url}/pod-{n}", f"pod-{n}", BROADCAST) for n in range(2)]
    produce(group.bootstrap, group.main, first)
    for pod in pods:
        until_seen(pod, service, values(first))
        assert pod.status()["mode"] == "broadcast"
        assert pod.status()["missing_topics"] == []
        assert pod.log().count("broadcast: every record from now on") == 1
    assert pods[0].stop().code == 0
    produce(group.bootstrap, group.main, second)
    until_seen(pods[1], service, values(second))
    pods[0].start()
    pods[0].wait_ready()
    produce(group.bootstrap, group.main, third)
    for pod in pods:
        until_seen(pod, service, values(third))
    assert [pod.stop().code for pod in pods] == [0, 0]
    assert seen(service, "pod-0") == values(first, third), "a restart begins at the newest"
    assert seen(service, "pod-1") == values(first, second, third)
    assert topics_of(group) == set()
    assert groups_of(group) == set()


@pytest.fixture
def alone(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Any:
    """Makes a group of main topics, a service with a script, and one sidecar: `alone(script, **deliver)`."""

    def make(script: Any, **deliver: object) -> tuple[GroupTopics, Service, SidecarProcess]:
        group, service = mains_only(new_group()), start_service(script)
        overrides = {**BROADCAST, "deliver": {"broadcast": True, **deliver}}
        return group, service, start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)

    return make


def test_a_failure_is_counted_and_named_in_a_warning_and_never_retried(alone: Any) -> None:
    def script(request: Request) -> Behaviour:
        return {b"0": FAIL, b"1": Answer(200, (("Reconsume-Verdict", "dead-letter; reason=bad-sku"),))}.get(
            (request.value or b"")[-1:], OK
        )

    group, service, sidecar = alone(script, outage_failures=None)
    records = named("order", 100)
    produce(group.bootstrap, group.main, records)
    until_seen(sidecar, service, values(records))
    sidecar.until(lambda: sidecar.status()["in_flight"] == 0, 10, "all are answered")
    series = 'reconsume_deliveries_total{{level="main",outcome="{}",topic="{}"}}'
    assert sidecar.metric(series.format("retry", group.main)) == 10
    assert sidecar.metric(series.format("dead_letter", group.main)) == 10
    for reason in ("http-500", "bad-sku"):
        line = sidecar.wait_log(f"failed, and a broadcast has no retries: {reason}")
        assert group.main in line
    assert 'mode="broadcast"' in next(
        line for line in sidecar.metrics().splitlines() if line.startswith("reconsume_info{")
    )
    assert sidecar.stop().code == 0
    assert seen(service, "pod-0") == values(records)


def test_new_partitions_and_topics_are_read_from_their_beginning(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = new_group(2)
    create_topic(group.bootstrap, group.main, 1)
    service = start_service(lambda _request: OK)
    sidecar = start_sidecar(group, f"{service.url}/pod-0", "pod-0", BROADCAST)
    sidecar.until(lambda: sidecar.status()["missing_topics"] == [group.mains[1]], 10, "one topic is missing")
    later = [Out(b"later:%d" % number, partition=1) for number in range(5)]
    add_partitions(group.bootstrap, group.main, 2)
    create_topic(group.bootstrap, group.mains[1], 1)
    produce(group.bootstrap, group.main, later)
    produce(group.bootstrap, group.mains[1], [Out(b"other")])
    until_seen(sidecar, service, values(later, [Out(b"other")]))
    assert sidecar.stop().code == 0


def test_a_service_that_is_away_gets_what_it_missed_when_it_is_back(alone: Any) -> None:
    group, service, sidecar = alone(lambda _request: OK)
    service.down()
    records = named("order", 200)
    produce(group.bootstrap, group.main, records)
    sidecar.until(lambda: sidecar.status()["pace"] != "open", 10, "the outage is noticed")
    begin = time.monotonic()
    sidecar.until(lambda: time.monotonic() - begin > 1, 2, "the outage lasts a second")
    assert seen(service, "pod-0") == Counter()
    service.up()
    until_seen(sidecar, service, values(records))
    assert sidecar.stop().code == 0
    assert seen(service, "pod-0") == values(records)


def test_only_the_tags_that_are_asked_for_are_broadcast(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, service = mains_only(new_group()), start_service(lambda _request: OK)
    overrides = {**BROADCAST, "topics": [{"name": group.main, "tags": "A"}]}
    sidecar = start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)
    wanted, unwanted = ([Out(tag, headers=(("TAGS", tag),))] * 5 for tag in (b"A", b"B"))
    produce(group.bootstrap, group.main, [*unwanted, *wanted])
    sidecar.until(lambda: seen(service, "pod-0")["A"] == 5, 10, "all of tag A are delivered")
    assert sidecar.stop().code == 0
    assert seen(service, "pod-0") == Counter(A=5)
