"""Two sidecars in a group: partitions change hands under load, are lost to a pause, and late answers come too late."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.broker import group_protocol
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, add_partitions, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.load import Load
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.owned import owned
from tests.support.sidecar.pace_run import warm_up
from tests.support.sidecar.process import SidecarProcess

PARTITIONS = 6
RATE = 500
"""Records a second."""
TENTH_FAILS_ONCE = b"0"
HELD = 48
"""Records that a sidecar has delivered when another one joins."""
SESSION_MS = 6_000
"""The shortest that a broker allows by default."""


def script(request: Request) -> Behaviour:
    """Takes 20 ms; every tenth record fails once."""
    fails = (request.value or b"").endswith(TENTH_FAILS_ONCE) and request.times == 0
    return Answer(500 if fails else 200, after=0.02)


def spread(records: int) -> list[Out]:
    """Records on all partitions in turn."""
    return [Out(b"%d" % number, partition=number % PARTITIONS) for number in range(records)]


def delivered_by(service: Service, pod: str, since: int = 0) -> int:
    """How many deliveries came from a pod, of those after the first `since`."""
    return sum(delivery.path.endswith(pod) for delivery in service.ledger.deliveries()[since:])


def ids_of(service: Service) -> set[str]:
    """The records that the service has seen."""
    return {delivery.id for delivery in service.ledger.deliveries()}


def is_warm(request: Request) -> bool:
    """Whether it is one of the records with which the slow start ends."""
    return (request.value or b"").startswith(b"warm")


def until_answered(service: Service, sidecar: SidecarProcess, count: int) -> None:
    """Wait until the service has given so many answers."""

    def given() -> bool:
        return sum(delivery.answered is not None for delivery in service.ledger.deliveries()) >= count

    sidecar.until(given, 5, f"{count} answers are given")


class Joined(NamedTuple):
    """Two sidecars: the first has delivered records that are not answered before `let_go`; the second has just come."""

    service: Service
    first: SidecarProcess
    second: SidecarProcess
    warm: frozenset[str]
    let_go: threading.Event


def second_joins(
    group: GroupTopics, start_service: StartService, start_sidecar: StartSidecar, overrides: Mapping[str, Any]
) -> Joined:
    """Every first attempt fails: those of the first sidecar once they are let go, those of the second at once."""
    let_go = threading.Event()

    def script(request: Request) -> Behaviour:
        if request.times or is_warm(request):
            return OK
        return Answer(500, until=let_go) if request.path.endswith("pod-0") else FAIL

    service = start_service(script)
    first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)
    warm = warm_up(group, service, first, HELD)
    produce(group.bootstrap, group.main, spread(HELD))
    first.until(lambda: service.in_flight == HELD, 15, "all are out")
    second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", overrides)
    return Joined(service, first, second, warm, let_go)


def states(sidecar: SidecarProcess) -> set[str]:
    """The states of the main partitions that a sidecar holds."""
    return {part["not_fetched"] for part in sidecar.status()["partitions"] if part["lane"] == "main"}


def add_partition(group: GroupTopics) -> None:
    """The main topic gets one more."""
    add_partitions(group.bootstrap, group.main, PARTITIONS + 1)


def test_partitions_change_hands_under_load_without_a_duplicate(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """A second sidecar joins, then the first leaves in order: revoked partitions are drained before they go."""
    group = create_group(new_group(), PARTITIONS)
    service = start_service(script)
    # As long as by default: on a busy machine a commit that meets the rebalance is tried again for some seconds.
    patient = {"lock_timeout": "30s", "drain_timeout": "30s"}
    with Load(group, RATE) as running:
        first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", patient)
        first.until(lambda: delivered_by(service, "pod-0") > 200, 15, "the first is at work")
        second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", patient)
        second.until(lambda: len(owned(second)) == len(owned(first)) == PARTITIONS // 2, 15, "each has half")
        second.until(lambda: delivered_by(service, "pod-1") > 200, 10, "the second is at work")
        mark = len(service.ledger.deliveries())
        second.until(lambda: delivered_by(service, "pod-0", mark) > 50, 10, "the first goes on")
        assert first.stop(40).code == 0
        second.until(lambda: len(owned(second)) == PARTITIONS, 10, "the second has all")
    second.until(lambda: len(service.ledger.taken()) == running.sent, 60, "all records are taken")
    assert second.stop(40).code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.duplicates) == (running.sent, 0, 0), report
    assert report.retries == (running.sent + 9) // 10


def test_a_rebalance_names_the_delivery_that_it_waits_for_and_other_partitions_do_not_wait(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), PARTITIONS)
    joined = second_joins(group, start_service, start_sidecar, {"lock_timeout": "30s"})

    def waits_for_deliveries() -> dict[str, Any] | None:
        shown: dict[str, Any] | None = joined.first.status()["hand_over"]
        return shown if shown is not None and shown["in_flight"] else None

    hand_over = joined.first.until(waits_for_deliveries, 20, "a rebalance waits for deliveries")
    assert hand_over is not None
    ids = {delivery.id for delivery in joined.service.ledger.deliveries() if delivery.answered is None}
    assert 0 < hand_over["in_flight"] <= HELD, "what stays does not wait"
    assert hand_over["oldest_id"] in ids
    waits = [line for line in joined.first.metrics().splitlines() if line.startswith("reconsume_hand_over_seconds{")]
    assert len(waits) > 0
    joined.let_go.set()
    joined.first.until(lambda: joined.first.status()["hand_over"] is None, 20, "it waits no more")
    joined.second.until(lambda: len(owned(joined.second)) == PARTITIONS // 2, 20, "the second has half")


@pytest.mark.long  # sim/test_group_sim.py tells it in every run, and the next but one
def test_an_answer_for_an_earlier_assignment_is_dropped_although_the_partition_came_back(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Deliveries outlast the lock. Another owner delivers the records again and counts their failures; when the
    partitions are back, what the first owner learns at last of its old deliveries must count for nothing."""
    group = create_group(new_group(), PARTITIONS)
    overrides = {"lock_timeout": "1s", "deliver": {"timeout": "60s"}}
    service, first, second, warm, let_go = second_joins(group, start_service, start_sidecar, overrides)
    second.until(lambda: len(owned(second)) == PARTITIONS // 2, 15, "the second has half")
    moved = sum(int(ident.split(":")[1]) in owned(second) for ident in ids_of(service) - warm)
    assert moved == HELD // 2
    second.until(lambda: len(service.ledger.taken() - warm) == moved, 15, "what moved has come again and is taken")
    assert second.stop().code == 0
    first.until(lambda: len(owned(first)) == PARTITIONS, 15, "the partitions are back")
    assert service.in_flight == HELD
    let_go.set()
    first.until(lambda: len(service.ledger.taken() - warm) == HELD, 15, "all are taken")
    assert first.metric("reconsume_fenced_answers_total") == moved
    assert first.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.retries) == (HELD + len(warm), 0, HELD), report
    assert report.duplicates == moved


@pytest.mark.long
def test_what_the_group_gives_away_before_it_was_given_up_is_counted_by_its_new_owner_alone(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """While the first waits for deliveries of revoked partitions, a partition is added: its client rejoins at once, and
    the second gets the partitions. The first's late failures would be taken under the new generation."""
    group = create_group(new_group(), PARTITIONS)
    overrides = {"lock_timeout": "60s", "deliver": {"timeout": "90s"}}
    service, first, second, warm, let_go = second_joins(group, start_service, start_sidecar, overrides)
    first.until(lambda: "closing" in states(first), 15, "partitions are being given up")
    add_partition(group)
    second.until(lambda: delivered_by(service, "pod-1") > 0, 30, "the second has some of them")
    let_go.set()
    first.until(lambda: len(service.ledger.taken() - warm) == HELD, 30, "all are taken")
    # By the newer protocol the group waits for the first, until that has waited for `lock_timeout`.
    first.wait_log("given-away" if group_protocol() == "classic" else "gave-up-unanswered")
    assert (first.stop().code, second.stop().code) == (0, 0)
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.retries) == (HELD + len(warm), 0, HELD), report


@pytest.mark.long  # sim/test_group_sim.py pauses pods in every run
def test_a_sidecar_that_stood_still_commits_nothing_of_what_it_lost_meanwhile(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Paused beyond its session in the midst of its work: failures unread in its sockets, failures decided and not
    committed, and as a rule a transaction begun. The heir counts what is not in Kafka; the sleeper must not again."""
    group = create_group(new_group(), PARTITIONS)
    records, waves = 120, [threading.Event() for _ in range(6)]

    def script(request: Request) -> Behaviour:
        """Every first attempt fails: those of the sleeper in waves, those of the heir at once."""
        if request.times or is_warm(request):
            return OK
        if not request.path.endswith("pod-0"):
            return FAIL
        return Answer(500, until=waves[int(request.value or b"0") // PARTITIONS % len(waves)])

    service = start_service(script)
    overrides = {"kafka": {"session.timeout.ms": str(SESSION_MS)}, "deliver": {"timeout": "60s", "concurrency": 256}}
    sleeper = start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)
    warm = warm_up(group, service, sleeper, records)
    produce(group.bootstrap, group.main, spread(records))
    sleeper.until(lambda: service.in_flight == records, 15, "all are out")
    for number, wave in enumerate(waves[:-1]):
        wave.set()
        until_answered(service, sleeper, len(warm) + number * records // len(waves) + 1)
    sleeper.pause()
    waves[-1].set()
    heir = start_sidecar(group, f"{service.url}/pod-1", "pod-1", overrides)
    heir.until(lambda: len(service.ledger.taken() - warm) == records, 40, "the heir has done it all")
    sleeper.cont()
    produce(group.bootstrap, group.main, spread(records))
    heir.until(lambda: len(service.ledger.taken() - warm) == 2 * records, 20, "the group goes on")
    heir.until(lambda: len(owned(sleeper)) == len(owned(heir)) == PARTITIONS // 2, 20, "the sleeper is back")
    assert [sleeper.stop().code, heir.stop().code] == [0, 0]
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.retries) == (2 * records + len(warm), 0, 2 * records), report
    assert records // len(waves) <= report.duplicates <= records, report


@pytest.mark.long
def test_two_sidecars_may_start_at_the_same_moment(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), PARTITIONS)
    service = start_service(script)
    pods = [start_sidecar(group, f"{service.url}/pod-{n}", f"pod-{n}", wait=False) for n in range(2)]
    with Load(group, RATE) as running:
        pods[0].until(lambda: all(delivered_by(service, f"pod-{n}") > 100 for n in range(2)), 60, "both are at work")
    pods[0].until(lambda: len(service.ledger.taken()) == running.sent, 60, "all records are taken")
    assert [pod.stop().code for pod in pods] == [0, 0]
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.duplicates) == (running.sent, 0, 0), report
