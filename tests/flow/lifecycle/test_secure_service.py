"""The main job over mTLS, with a token and signatures: all are renewed on the way, and nothing is lost or repeated."""

from __future__ import annotations

import ssl
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reconsume.sidecar.delivery.push.access import LOOK_EVERY
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.kafka.certificates import Authority
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Evidence, collect
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request
from tests.support.service.service import Service
from tests.support.service.signatures import takes
from tests.support.sidecar.service_files import ServiceFiles

RECORDS, POISON = 200, 5
AWAY = 30
"""Records that are produced while the service shows a certificate of another CA."""


class Receiver:
    """A service that looks at the token and the signature of each request. `refused`: those that it does not take."""

    def __init__(self, files: ServiceFiles) -> None:
        self._valid = {(files.token, files.secret)}
        self.refused: list[str] = []

    def renew(self, files: ServiceFiles) -> None:
        """Renew all that is shown to the service, which takes the former ones too for now."""
        files.renew_certificate("renewed")
        files.renew_token()
        files.renew_secret()
        self._valid.add((files.token, files.secret))

    def forget_former(self, files: ServiceFiles) -> None:
        self._valid = {(files.token, files.secret)}

    def __call__(self, request: Request) -> Behaviour:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        body = request.value or b""
        if not any(token == valid and takes(request.headers, body, secret) for valid, secret in self._valid):
            self.refused.append(request.id)
        bad = body.startswith(b"poison") or (request.times == 0 and zlib.crc32(request.id.encode()) % 3 == 0)
        return FAIL if bad else OK


class Run(NamedTuple):
    """One sidecar's work, seen from outside. `amid`: its status while the service was not trusted."""

    evidence: Evidence
    report: Report
    receiver: Receiver
    amid: Any
    log: str
    secrets: tuple[str, ...]


def records(name: str, count: int) -> list[Out]:
    return [Out(f"{name} {number}".encode(), b"k%d" % (number % 7)) for number in range(count)]


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_sidecar: StartSidecar, stack: ExitStack, folder: Path) -> Run:
    ours, other = Authority(folder / "ours", "ours"), Authority(folder / "other", "other")
    files = ServiceFiles(folder / "mounted", ours)
    secrets, receiver = [files.token, files.secret], Receiver(files)
    group = create_group(new_group(), partitions=3)
    trusted, strange = ours.context("127.0.0.1", mutual=ours), other.context("127.0.0.1")
    service = stack.enter_context(Service(folder / "ledger", receiver, context=trusted))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": files.settings})

    def settle(total: int) -> None:
        sidecar.until(lambda: len(service.ledger.taken()) == total, 30, f"{total} records are taken")

    def show(context: ssl.SSLContext) -> None:
        service.down()
        service.context = context
        service.up()

    produce(group.bootstrap, group.main, records("first", RECORDS // 2))
    receiver.renew(files)
    sidecar.wait_log("service-credentials-reloaded", LOOK_EVERY * 2)
    settle(RECORDS // 2)
    receiver.forget_former(files)
    produce(group.bootstrap, group.main, records("second", RECORDS // 2))
    settle(RECORDS)
    show(strange)
    produce(group.bootstrap, group.main, records("away", AWAY))
    sidecar.wait_log("tls-untrusted")
    amid = sidecar.status()
    show(trusted)
    produce(group.bootstrap, group.main, records("poison", POISON))
    settle(RECORDS + AWAY)
    sidecar.until(lambda: len(last_attempts(service)) == POISON, 30, "each poison record had its last attempt")
    # An answer that meets the stop is no attempt, so that its record would wait for the next owner.
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == POISON, 30, "each poison record is a dead letter")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    secrets += [files.token, files.secret]
    return Run(evidence, check(evidence), receiver, amid, sidecar.log(), tuple(secrets))


def last_attempts(service: Service) -> list[Delivery]:
    return [d for d in service.ledger.deliveries() if d.times == 2 and (d.value or b"").startswith(b"poison")]


def test_no_record_is_lost_and_each_attempt_is_made_once(run: Run) -> None:
    counts = (run.report.committed, run.report.dead_lettered, run.report.waiting, run.report.duplicates)
    assert counts == (RECORDS + AWAY, POISON, 0, 0)


def test_every_request_carries_the_token_and_a_signature_that_hold_at_that_time(run: Run) -> None:
    assert run.receiver.refused == []


def test_a_service_that_is_not_trusted_is_an_outage_that_spends_nothing(run: Run) -> None:
    assert run.amid["pace"] == "outage"
    assert run.amid["pace_reason"] == "tls-untrusted"
    assert all(delivery.times <= 1 for delivery in run.evidence.deliveries if (delivery.value or b"")[:4] == b"away")


def test_neither_log_nor_status_shows_a_secret(run: Run) -> None:
    assert not [secret for secret in run.secrets if secret in run.log or secret in str(run.amid)]
