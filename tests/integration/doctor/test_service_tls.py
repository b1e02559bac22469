"""The doctor looks at the service's certificate, and at ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconsume.sidecar.delivery.push.credentials import CERTIFICATE, KEY, SECRETS, TOKEN
from reconsume.sidecar.doctor.checks.service import SOON_DAYS, delivered_to_each, service
from reconsume.sidecar.doctor.findings import Finding, Status
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.sidecar.settings.model import Settings
from tests.support.kafka.certificates import Authority
from tests.support.service.greeter import Greeter
from tests.support.service.stub_service import StubService, ok
from tests.support.sidecar.service_files import ServiceFiles
from tests.support.sidecar.settings import good

LONG = 90


def configured(service_files: ServiceFiles, url: str, *without: str) -> Deliver:
    return settings(service_files, url, *without).deliver


def settings(service_files: ServiceFiles, url: str, *without: str) -> Settings:
    named = (f"{name}={file}" for name, file in service_files.named.items() if name not in without)
    return good(service_files.named[TOKEN].parent, f"deliver.url={url}", *named)


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_certificate_that_is_good_for_long_is_well(ours: Authority, service_files: ServiceFiles) -> None:
    with StubService([ok], context=ours.context("127.0.0.1", mutual=ours, days=LONG)) as stub:
        found = only(service(configured(service_files, stub.url, SECRETS)))
    assert (found.status, "takes connections" in found.finding) == (Status.OK, True), found
    assert stub.requests == [], "no request is sent"


def test_a_certificate_that_ends_soon_is_a_warning(ours: Authority, service_files: ServiceFiles) -> None:
    with StubService([ok], context=ours.context("127.0.0.1", mutual=ours, days=SOON_DAYS - 1)) as stub:
        found = only(service(configured(service_files, stub.url, SECRETS)))
    assert (found.status, "its certificate expires in 13 days" in found.finding) == (Status.WARN, True), found


@pytest.mark.parametrize(
    ("context", "says"),
    [
        (lambda ours, other: other.context("127.0.0.1"), "its CA is not known here"),
        (lambda ours, other: ours.context("127.0.0.1", expired=True), "has expired"),
        (lambda ours, other: ours.context("elsewhere.example"), "is for another name"),
        (lambda ours, other: ours.context("127.0.0.1", mutual=other, days=LONG), "does not accept our certificate"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_a_failure_with_its_cause(
    ours: Authority, other: Authority, service_files: ServiceFiles, context: Callable[..., object], says: str
) -> None:
    with StubService([ok], context=context(ours, other)) as stub:  # type: ignore[arg-type]
        found = only(service(configured(service_files, stub.url, SECRETS)))
    assert (found.status, says in found.finding, bool(found.mend)) == (Status.FAIL, True, True), found
    assert found.finding.startswith("deliver.url: https://127.0.0.1:")


def test_a_certificate_of_ours_that_is_missing_is_a_failure(ours: Authority, service_files: ServiceFiles) -> None:
    with StubService([ok], context=ours.context("127.0.0.1", mutual=ours, days=LONG)) as stub:
        found = only(service(configured(service_files, stub.url, SECRETS, CERTIFICATE, KEY)))
    assert (found.status, "or wants one" in found.finding) == (Status.FAIL, True), found


def test_a_port_without_tls_is_a_failure(service_files: ServiceFiles) -> None:
    with Greeter(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as plain:
        found = only(service(configured(service_files, plain.url, SECRETS)))
    assert (found.status, "the TLS handshake fails" in found.finding) == (Status.FAIL, True), found


def test_a_trial_is_sent_as_a_real_record(ours: Authority, service_files: ServiceFiles) -> None:
    with StubService([ok], context=ours.context("127.0.0.1", mutual=ours, days=LONG)) as stub:
        found = only(delivered_to_each(settings(service_files, stub.url)))
    assert found.status == Status.OK, found
    head = stub.requests[0].partition(b"\r\n\r\n")[0]
    assert f"Authorization: Bearer {service_files.token}".encode() in head
    assert b"webhook-signature: v1," in head
    assert b"Reconsume-Trial: 1" in head
