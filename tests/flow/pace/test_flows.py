"""Every flow has its share on a real broker: slow and fast topics, hung records, a redrive."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, Request, verdict
from tests.support.service.service import Service
from tests.support.sidecar.redrive import DlqProcess

PLACES = 16
SLOW = 0.4
"""Seconds that the slow topic's records, and those of the redrive, take: a round of either takes as long."""
SLOW_RECORDS, REDRIVEN, LATER, FAST = 400, 300, 40, 10
LATE = 1_500
"""ms that a due retry may be late: a second of the promise, and what a loaded machine takes to commit and fetch."""


def script_of(release: threading.Event) -> Callable[[Request], Behaviour]:
    """What the service does, by the name before the colon."""

    def script(request: Request) -> Behaviour:
        name = (request.value or b"").partition(b":")[0]
        if name == b"hung":
            return Answer(until=release)
        if name == b"back" and request.headers["reconsume-redrives"] == "0":
            return verdict("dead-letter; reason=bad-sku")
        if name == b"later" and request.times == 0:
            return FAIL
        return Answer(after=SLOW) if name in (b"slow", b"back") else OK

    return script


def of(service: Service, name: bytes) -> list[Delivery]:
    """The deliveries of a kind of records, in the order in which they came."""
    found = [one for one in service.ledger.deliveries() if (one.value or b"").startswith(name + b":")]
    return sorted(found, key=lambda one: one.received)


def outs(name: str, count: int, chance: random.Random) -> list[Out]:
    """Records of a kind, on partitions by chance."""
    return [Out(f"{name}:{number}".encode(), b"k%d" % number, partition=chance.randrange(2)) for number in range(count)]


def lateness(service: Service) -> list[int]:
    """How late each retry of a second came, in ms after its failure and its delay."""
    failed = {one.id: one.answered for one in of(service, b"later") if one.times == 0}
    return [one.received - (failed[one.id] or 0) - 1_000 for one in of(service, b"later") if one.times == 1]


def redrive(group: GroupTopics, folder: Path) -> DlqProcess:
    return DlqProcess(group, folder, "redrive", "--reason", "bad-sku", "--yes")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_neither_a_slow_topic_nor_hung_records_nor_a_redrive_delay_what_else_is_due(
    seed: int, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    chance, release = random.Random(seed), threading.Event()
    group = create_group(new_group(mains=2))
    service = start_service(script_of(release))
    retry = {"ladder": ["1s"], "max_reconsume_times": 3}
    overrides = {"deliver": {"concurrency": PLACES, "outage_failures": None}, "retry": retry}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    slow, fast = group.mains
    produce(group.bootstrap, slow, outs("back", REDRIVEN, chance))
    sidecar.until(lambda: len(of(service, b"back")) == REDRIVEN, 30, "the letters are dead")
    produce(group.bootstrap, slow, outs("hung", chance.randint(1, 3), chance))
    with redrive(group, tmp_path) as command:
        assert command.end()[0] == 0
    produce(group.bootstrap, slow, outs("slow", SLOW_RECORDS, chance))  # behind the command, which may take seconds
    sidecar.until(lambda: len(of(service, b"back")) > REDRIVEN + PLACES, 30, "the redrive is being delivered")
    assert len(of(service, b"slow")) < SLOW_RECORDS - 4 * PLACES, "the slow topic still waits"
    produce(group.bootstrap, fast, outs("later", LATER, chance))
    produce(group.bootstrap, fast, outs("fast", FAST, chance))
    sidecar.until(lambda: len(of(service, b"fast")) == FAST, 30, "the fast records are done")
    came = of(service, b"fast")
    between = [one for one in of(service, b"slow") if came[0].received <= one.received <= came[-1].received]
    assert len(between) <= 2 * PLACES
    until(lambda: len(lateness(service)) == LATER, 30, "each retry came")
    assert len(of(service, b"back")) < 2 * REDRIVEN, "the redrive still goes on"
    assert max(lateness(service)) <= LATE
    release.set()
    await_quiet(group, 60)
    sidecar.stop()
    report = check(collect(group, service.ledger))
    assert (report.waiting, report.dead_lettered) == (0, REDRIVEN)


@pytest.mark.long
def test_what_hangs_leaves_a_way_for_others_when_an_outage_is_over(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given failures in a row beside it: a probe of what hangs would have the last place, until it is answered."""
    release, places = threading.Event(), 8
    group = create_group(new_group(mains=2))
    service = start_service(script_of(release))
    deliver = {"concurrency": places, "outage_failures": 3, "timeout": "5m"}
    retry = {"ladder": ["1s"], "max_reconsume_times": 3}
    sidecar = start_sidecar(group, service.url, overrides={"deliver": deliver, "retry": retry})
    hanging, other = group.mains
    produce(group.bootstrap, hanging, [Out(b"hung:%d" % number, partition=number % 2) for number in range(3 * places)])
    sidecar.until(lambda: len(of(service, b"hung")) == places - 1, 30, "all places but one are taken")
    produce(group.bootstrap, other, [Out(b"later:%d" % number, partition=number % 2) for number in range(places)])
    sidecar.until(lambda: sidecar.metric('reconsume_pace_changes_total{state="outage"}') >= 1, 30, "an outage begins")
    sidecar.until(lambda: len(lateness(service)) == places, 60, "the retries of all that failed came")
    produce(group.bootstrap, other, [Out(b"fast:%d" % number, partition=number % 2) for number in range(FAST)])
    sidecar.until(lambda: len(of(service, b"fast")) == FAST, 30, "what came after the outage is done")
    assert len(of(service, b"hung")) == places - 1
    release.set()
    await_quiet(group, 60)
    sidecar.stop()
    assert check(collect(group, service.ledger)).waiting == 0
