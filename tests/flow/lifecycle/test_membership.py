"""A pod is a member of the group while its service can work: it comes with it, and goes when it is away for long."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from reconsume.topics.policy_record import PaceTold
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.heartbeats import heartbeats
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Ledger
from tests.support.proof.load import Load
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.service.puller import PULL, Puller
from tests.support.service.service import Service
from tests.support.sidecar.owned import owned
from tests.support.sidecar.process import SidecarProcess

PARTITIONS = 4
AWAY = 2.0
"""Seconds after which the service of a new pod listens; half a minute in life."""
RATE = 50
LEAVE = 2.0
SLOW = 1.0
REST = 30.0
"""Seconds that a member stays at least, whatever its service does."""
WAITING = "waiting for the service"


def ages(group: GroupTopics, *services: Service) -> list[int]:
    """How long, in ms, each record lay in the main topic before its first delivery."""
    first: dict[bytes, int] = {}
    for delivery in (found for service in services for found in service.ledger.deliveries()):
        first[delivery.value or b""] = min(delivery.received, first.get(delivery.value or b"", delivery.received))
    return [first[row.value or b""] - row.timestamp for row in dump(group.bootstrap, group.main)]


def shared(*sidecars: SidecarProcess) -> bool:
    """Whether each has a part of the partitions, and all together have all."""
    parts = [owned(sidecar) for sidecar in sidecars]
    return all(parts) and set().union(*parts) == set(range(PARTITIONS))


def test_a_pod_whose_service_is_not_there_yet_takes_no_partition_and_ages_no_record(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=PARTITIONS)
    old, new = start_service(lambda _: OK), start_service(lambda _: OK)
    first = start_sidecar(group, old.url, pod="old")
    first.until(lambda: len(owned(first)) == PARTITIONS, 15, "the first pod has all partitions")
    new.down()
    with Load(group, RATE) as load:
        second = start_sidecar(group, new.url, pod="new")
        began = time.monotonic()
        assert {second.request("GET", path).status for path in ("/livez", "/startupz", "/readyz")} == {200}
        second.until(lambda: time.monotonic() - began > AWAY, AWAY + 5, "the service is away")
        assert (second.status()["state"], owned(second), len(owned(first))) == (WAITING, set(), PARTITIONS)
        waited = time.time() - second.status()["waiting_since"] / 1000
        assert AWAY <= waited < second.metric("reconsume_waiting_seconds") + 1
        new.up()
        second.until(lambda: shared(first, second), 15, "the new pod has its part")
        assert (second.status()["state"], second.status()["waiting_since"]) == ("running", None)
        assert second.metric("reconsume_waiting_seconds") == 0
        seen = len(new.ledger.deliveries())
        second.until(lambda: len(new.ledger.deliveries()) > seen, 15, "its service gets records")
    second.until(lambda: len(old.ledger.taken()) + len(new.ledger.taken()) >= load.sent, 15, "all are taken")
    assert max(ages(group, old, new)) < 3_000


def told_of(group: GroupTopics) -> list[PaceTold]:
    """The paces that instances told of themselves, in order."""
    return [heartbeat.pace for heartbeat in heartbeats(group) if heartbeat.pace]


@pytest.mark.parametrize(
    ("deliver", "reason", "until"),
    [
        ({}, "no connection to {url} (connection-refused)", "its service listens; start it, or correct deliver.url"),
        (
            {"health_url": "{url}health"},
            "{url}health is not well (connection-refused)",
            "its service is well; start it, or correct deliver.health_url",
        ),
        (
            {"mode": "pull", "url": None},
            "no call of receive",
            "its service calls POST /v1/receive; start the service, or correct the address that it calls",
        ),
    ],
    ids=["url", "health-url", "pull"],
)
def test_one_whose_service_is_not_there_says_so_with_its_address_and_the_cause(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar,
    deliver: dict[str, str | None], reason: str, until: str,
) -> None:  # fmt: skip
    group = create_group(new_group(), partitions=1)
    create_topic(group.bootstrap, group.names.policy)
    service = start_service(lambda _: OK)
    service.down()
    given = {name: value and value.format(url=service.url) for name, value in deliver.items()}
    sidecar = start_sidecar(group, service.url, overrides={"deliver": given})
    why = reason.format(url=service.url)
    line = sidecar.wait_log("waiting-for-service", 30)
    assert f"{why}: this instance takes no records until {until}" in line
    assert sidecar.status()["waiting_reason"] == why
    [told] = sidecar.until(
        lambda: [one for one in told_of(group) if one.reason == why][:1], 30, "its heartbeat says it"
    )
    assert (told.state, told.since) == ("waiting", sidecar.status()["waiting_since"])


def test_a_group_in_which_no_service_is_there_is_joined_all_the_same(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    service = start_service(lambda _: OK)
    service.down()
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"leave_after": "1s"}})
    sidecar.until(lambda: owned(sidecar) == {0}, 15, "the group has a member")
    produce(group.bootstrap, group.main, [b"1"])
    sidecar.until(lambda: sidecar.status()["pace"] != "open", 15, "it probes")
    service.up()
    sidecar.until(lambda: len(service.ledger.taken()) == 1, 15, "the record is taken")


def test_one_that_is_always_a_member_does_not_wait(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    service = start_service(lambda _: OK)
    service.down()
    sidecar = start_sidecar(group, service.url, overrides={"membership": "always"})
    sidecar.until(lambda: owned(sidecar) == {0}, 10, "it has its partition")


def test_a_pod_that_is_pulled_from_takes_partitions_from_the_first_receive_on(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = create_group(new_group(), partitions=1)
    produce(group.bootstrap, group.main, [b"1"])
    sidecar = start_sidecar(group, "", overrides=PULL)
    assert (sidecar.status()["state"], owned(sidecar)) == (WAITING, set())
    [got] = Puller(sidecar, ledger).receive(wait="15s")
    assert (got.value, sidecar.status()["state"], owned(sidecar)) == (b"1", "running", {0})


def slow_first(request: Request) -> Behaviour:
    """The record that is out while the service goes takes a second."""
    return Answer(200, after=SLOW) if request.value == b"slow" else OK


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_pod_whose_service_breaks_hands_over_to_one_that_is_well_and_comes_back(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=PARTITIONS)
    create_topic(group.bootstrap, group.names.policy)
    broken, well = start_service(slow_first), start_service(lambda _: OK)
    overrides = {"deliver": {"leave_after": f"{LEAVE:g}s", "outage_failures": 20}}
    first = start_sidecar(group, broken.url, pod="first", overrides=overrides)
    second = start_sidecar(group, well.url, pod="second", overrides=overrides)
    first.until(lambda: shared(first, second), 20, "both have a part")
    joined = time.monotonic()
    first.until(lambda: time.monotonic() - joined > REST, REST + 5, "it may leave")
    produce(group.bootstrap, group.main, [Out(b"slow", partition=number) for number in range(PARTITIONS)])
    first.until(lambda: broken.in_flight > 0, 10, "deliveries are out")
    broken.retire(broken.in_flight)
    gone = time.monotonic()
    produce(group.bootstrap, group.main, [Out(b"%d" % number, partition=number % PARTITIONS) for number in range(80)])
    first.until(lambda: len(owned(second)) == PARTITIONS, 30, "the other one has all")
    assert time.monotonic() - gone < LEAVE + 5
    assert first.status()["state"] == WAITING
    assert {first.request("GET", path).status for path in ("/livez", "/startupz", "/readyz")} == {200}
    first.until(lambda: len(well.ledger.taken() | broken.ledger.taken()) == 84, 20, "all are taken")
    broken.up()
    first.until(lambda: shared(first, second), REST + 15, "it comes back")
    assert time.monotonic() - gone > REST
    assert (first.stop().code, second.stop().code) == (0, 0)
    both = sorted((*broken.ledger.deliveries(), *well.ledger.deliveries()), key=lambda delivery: delivery.received)
    report = check(replace(collect(group, well.ledger), deliveries=tuple(both)))
    assert (report.duplicates, report.retries, report.committed) == (0, 0, 84)
