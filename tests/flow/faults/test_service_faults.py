"""A service that breaks its answers, is away, or asks for time: what costs a retry, and what must not."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.ledger import THROTTLED, Delivery
from tests.support.service.behaviours import (
    CLOSE,
    CLOSE_MID,
    ENDLESS,
    FAIL,
    GARBAGE,
    HANG,
    OK,
    Answer,
    Behaviour,
    Request,
    by_name,
)

TIMEOUT = 3
"""Seconds for an answer: on a full machine the service's own process has stood still for more than one."""
BROKEN: dict[str, tuple[Behaviour, bytes]] = {
    "hang": (HANG, b"timeout"),
    "late": (Answer(after=TIMEOUT + 0.5), b"timeout"),
    "close": (CLOSE, b"connection-lost"),
    "close-mid": (CLOSE_MID, b"connection-lost"),
    "garbage": (GARBAGE, b"broken-answer"),
    "endless": (ENDLESS, b"broken-answer"),
}
TWICE = [0, 0, 1]
"""Several connections that end together look like the death of the service: no attempt is counted then."""
EACH = 3
GOOD = 200
AWAY = 5.0
"""Seconds that the service is gone: longer than the first two rungs of the ladder together."""
LOAD = 3_000
IN_FLIGHT = 8
BUSY = 1.5
"""Seconds for which the service asks for time."""


class Run(NamedTuple):
    """One sidecar's work."""

    evidence: Evidence
    report: Report

    def of(self, name: str) -> dict[str, list[Delivery]]:
        """The deliveries of the records called `name:…`, by id."""
        found: dict[str, list[Delivery]] = {}
        for delivery in self.evidence.deliveries:
            if (delivery.value or b"").startswith(name.encode() + b":"):
                found.setdefault(delivery.id, []).append(delivery)
        return found

    def copies(self, ident: str) -> list[Copy]:
        return [copy for chain in self.evidence.lives.get((ident, 0), {}).values() for copy in chain]


def named(name: str, count: int) -> list[bytes]:
    return [b"%s:%d" % (name.encode(), number) for number in range(count)]


def breaks_once(request: Request) -> Behaviour:
    """Break the first attempt of each record that is named so, also if that is sent twice."""
    name = (request.value or b"").partition(b":")[0].decode()
    return BROKEN[name][0] if name in BROKEN and request.times == 0 else OK


@pytest.fixture(scope="module")
def broken(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """Each broken answer once for each of its records, good records between them."""
    group = create_group(new_group())
    service = start_service(breaks_once)
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"timeout": f"{TIMEOUT}s"}})
    records = [record for name in BROKEN for record in named(name, EACH)] + named("good", GOOD)
    produce(group.bootstrap, group.main, records)
    retried = EACH * len(BROKEN)
    sidecar.until(
        lambda: sum(d.times == 1 for d in service.ledger.deliveries()) == retried, 20, f"{retried} records come again"
    )
    sidecar.until(lambda: len(service.ledger.taken()) == len(records), 10, "all records are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_costs_exactly_one_retry(broken: Run, name: str) -> None:
    lives = broken.of(name)
    assert len(lives) == EACH
    for ident, deliveries in lives.items():
        assert [delivery.times for delivery in deliveries] in ([0, 1], TWICE if name in ("close", "close-mid") else [])
        (copy,) = broken.copies(ident)
        assert copy.ours[wire.RETRY_REASON].partition(b":")[0] == BROKEN[name][1]


def test_records_between_broken_answers_are_delivered_once(broken: Run) -> None:
    assert [len(deliveries) for deliveries in broken.of("good").values()] == [1] * GOOD
    assert broken.report.duplicates <= 2 * EACH  # of "close" and "close-mid"
    assert broken.report.committed == GOOD + EACH * len(BROKEN)


def test_an_endless_head_and_a_hang_end_at_the_timeout_at_the_latest(broken: Run) -> None:
    """The retry's due time is the failure + 1 s: the failure came within the timeout and a look at deadlines."""
    for name in ("hang", "endless"):
        for ident, (first, _) in broken.of(name).items():
            (copy,) = broken.copies(ident)
            assert copy.due - 1_000 - first.received < TIMEOUT * 1_000 + 500


@pytest.fixture(scope="module")
def outage(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """The service goes away under load for longer than a ladder, and comes back; a retry falls due then."""
    group = create_group(new_group(), partitions=3)
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"concurrency": IN_FLIGHT}})
    produce(group.bootstrap, group.main, named("flaky", EACH))
    sidecar.until(lambda: len(service.ledger.deliveries()) == EACH, 15, "the flaky records have failed")
    service.script = slowly
    produce(group.bootstrap, group.main, named("good", LOAD))
    service.retire(IN_FLIGHT)
    gone = time.monotonic()
    before = len(service.ledger.deliveries())
    sidecar.until(lambda: time.monotonic() - gone > AWAY, AWAY + 1, "the outage is over")
    assert len(service.ledger.deliveries()) == before, "the service was not away"
    assert len(service.ledger.taken()) < LOAD, "there was no load left when the service went away"
    service.script = lambda _request: OK
    service.up()
    sidecar.until(lambda: len(service.ledger.taken()) == LOAD + EACH, 30, "all records are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence))


def slowly(request: Request) -> Behaviour:
    """Takes everything, so slowly that the load outlasts the test's next step."""
    return Answer(after=0.02)


def test_a_refused_connection_is_not_an_attempt(outage: Run) -> None:
    good = outage.of("good")
    assert [(d.times, len(each)) for each in good.values() for d in each] == [(0, 1)] * LOAD
    assert not [ident for ident in good if outage.copies(ident)]
    assert outage.evidence.dlq == ()


def test_a_retry_that_falls_due_during_an_outage_spends_no_other(outage: Run) -> None:
    for ident, deliveries in outage.of("flaky").items():
        assert [delivery.times for delivery in deliveries] == [0, 1]
        assert len(outage.copies(ident)) == 1


def test_an_outage_costs_no_duplicate(outage: Run) -> None:
    assert outage.report.duplicates == 0
    assert outage.report.committed == LOAD + EACH


@pytest.fixture(scope="module")
def throttled(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """The service asks everybody for time, until it does not."""
    group = create_group(new_group())
    begun: list[float] = []

    def script(_request: Request) -> Behaviour:
        begun.append(time.monotonic())
        return Answer(429) if begun[-1] - begun[0] < BUSY else OK

    service = start_service(script)
    sidecar = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, named("good", GOOD))
    sidecar.until(lambda: len(service.ledger.taken()) == GOOD, 30, "all records are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence))


def test_throttling_spends_nothing(throttled: Run) -> None:
    assert [delivery.times for delivery in throttled.evidence.deliveries if delivery.times] == []
    assert all(rows == () for rows in throttled.evidence.retries.values())
    assert throttled.report.committed == GOOD
    assert throttled.report.duplicates == 0


def test_throttling_slows_down(throttled: Run) -> None:
    """Without a pause, so many records at 64 a time would ask thousands of times in that time."""
    asked = sum(delivery.means == THROTTLED for delivery in throttled.evidence.deliveries)
    assert 0 < asked < 3 * GOOD
