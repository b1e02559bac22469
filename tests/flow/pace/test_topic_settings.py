"""One service with several topics on a real broker: paths, timeouts, places and rates of their own, push and batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, Request, verdict
from tests.support.service.service import Service
from tests.support.sidecar.config import Config
from tests.support.sidecar.redrive import DlqProcess

ORDERS, BILLS = "/orders?by=kafka", "/bills"
SHORT_MS, TAKES_MS = 500, 1_500
"""A timeout of one topic, and what a record takes that is in time for the other one alone."""
RATE = 20
JITTER_MS = 250
"""By how much the first of a burst may come late: the connections for it are opened few at a time."""


def outs(name: str, count: int) -> list[Out]:
    """Records of a kind, in turn on two partitions."""
    return [Out(f"{name}:{number}".encode(), b"k", partition=number % 2) for number in range(count)]


def of(service: Service, name: str) -> list[Delivery]:
    """The deliveries of a kind of records, in the order in which they came."""
    came = [one for one in service.ledger.deliveries() if (one.value or b"").startswith(name.encode() + b":")]
    return sorted(came, key=lambda one: one.received)


def script(request: Request) -> Behaviour:
    """`flaky` fails once; `long` takes more than the short timeout."""
    name = (request.value or b"").partition(b":")[0]
    if name == b"flaky":
        return OK if request.times else FAIL
    return Answer(after=TAKES_MS / 1_000) if name == b"long" and not request.times else OK


def settings_of(group: GroupTopics, batch: int, **own: object) -> Config:
    """Two topics, the first with a path and a timeout of its own, the second with a path and a rate."""
    first, second = group.mains
    topics = [
        {"name": first, "path": ORDERS, "timeout": f"{SHORT_MS}ms", **own},
        {"name": second, "path": BILLS, "rate": f"{RATE}/s"},
    ]
    return {"topics": topics, "deliver": {"batch": {"max_size": batch}, "concurrency": 16}}


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.long)])
def test_each_topic_has_its_path_timeout_and_rate_for_retries_too(
    batch: int, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(mains=2))
    service = start_service(script)
    first, second = group.mains
    sidecar = start_sidecar(group, service.url, overrides=settings_of(group, batch))
    produce(group.bootstrap, first, outs("flaky", 6) + outs("plain", 30))
    produce(group.bootstrap, second, [*outs("long", 2), *outs("bill", 100)])
    sidecar.until(lambda: len(of(service, "plain")) == 30, 20, "the topic without a rate")
    waiting = {"limit": "rate", "topic": second, "most": float(RATE), "waits": True}
    sidecar.until(lambda: waiting in sidecar.status()["limits"], 10, "the other one waits for its rate")
    assert len(of(service, "bill")) < 100
    produce(group.bootstrap, first, outs("long", 2))
    sidecar.until(lambda: len(service.ledger.taken()) == 6 + 30 + 100 + 2 + 2, 40, "all are done")
    await_quiet(group, 20)
    assert sidecar.stop().code == 0
    for one in service.ledger.deliveries():
        assert one.path == (ORDERS if one.id.startswith(f"{first}:") else BILLS)
    times = {topic: [one.times for one in of(service, "long") if one.id.startswith(topic)] for topic in group.mains}
    assert max(times[first]) == 1, "it was not in time for its topic"
    assert times[second] == [0, 0], "the timeout of all holds here"
    bills = [one.received for one in service.ledger.deliveries() if one.id.startswith(f"{second}:")]
    seconds = (max(bills) - min(bills) + JITTER_MS) / 1_000
    assert len(bills) <= seconds * RATE + RATE + 1, "never more than the rate and a burst of a second"
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.dead_lettered) == (140, 0, 0), report


def hangs(name: bytes, release: threading.Event) -> Callable[[Request], Behaviour]:
    """A script that hangs with records of a kind, or a batch that has one."""

    def script(request: Request) -> Behaviour:
        return Answer(until=release) if (request.value or b"").startswith(name) else OK

    return script


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.long)])
def test_a_topic_that_hangs_takes_no_more_than_its_places_and_another_one_goes_on(
    batch: int, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, release = create_group(new_group(mains=2)), threading.Event()
    service = start_service(hangs(b"hung", release))
    first, second = group.mains
    topics = [{"name": first, "concurrency": 2}, second]
    deliver = {"batch": {"max_size": batch}, "concurrency": 8, "timeout": "1m"}
    sidecar = start_sidecar(group, service.url, overrides={"topics": topics, "deliver": deliver})
    produce(group.bootstrap, first, outs("hung", 60))
    sidecar.until(lambda: of(service, "hung"), 20, "the first ones hang")
    produce(group.bootstrap, second, outs("fast", 400))
    sidecar.until(lambda: len(of(service, "fast")) == 400, 20, "the other topic goes on")
    hung = of(service, "hung")
    assert len(hung) <= 2 * batch
    assert not [one for one in hung if one.answered]
    bound = {"limit": "concurrency", "topic": first, "most": 2.0 * batch, "waits": True}
    sidecar.until(lambda: bound in sidecar.status()["limits"], 10, "it is named")
    assert sidecar.metric(f'reconsume_limit_waiting{{limit="concurrency",topic="{first}"}}') == 1
    release.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 460, 20, "all are done")
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_a_redrive_goes_to_the_path_of_its_topic_and_by_its_rate(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(new_group(mains=2))

    def refusing(request: Request) -> Behaviour:
        return verdict("dead-letter; reason=bad-sku") if request.headers["reconsume-redrives"] == "0" else OK

    service = start_service(refusing)
    first, second = group.mains
    topics = [{"name": first, "path": ORDERS}, {"name": second, "path": BILLS, "rate": f"{RATE}/s"}]
    sidecar = start_sidecar(group, service.url, overrides={"topics": topics})
    for main in group.mains:
        produce(group.bootstrap, main, outs("bad", 60))
    sidecar.until(lambda: len(service.ledger.deliveries()) == 120, 30, "the letters are dead")
    await_quiet(group, 20)
    with DlqProcess(group, tmp_path, "redrive", "--reason", "bad-sku", "--yes") as command:
        assert command.end()[0] == 0
    sidecar.until(lambda: len(service.ledger.taken()) == 120, 30, "all are done")
    again = [one for one in service.ledger.deliveries() if one.redrives == 1]
    assert {one.path for one in again if one.id.startswith(f"{first}:")} == {ORDERS}
    bills = [one for one in again if one.id.startswith(f"{second}:")]
    assert {one.path for one in bills} == {BILLS}
    lasted = max(one.received for one in bills) - min(one.received for one in bills)
    assert len(bills) <= (lasted + JITTER_MS) / 1_000 * RATE + RATE + 1
