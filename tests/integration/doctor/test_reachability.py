"""How the doctor tells why Kafka cannot be reached: each cause by its own sentence."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconsume.sidecar.doctor.checks.kafka import reach
from reconsume.sidecar.doctor.findings import Report, Status
from tests.support.kafka.broker import Broker
from tests.support.service.listener import listener


def told(kafka: dict[str, str]) -> tuple[Status, str]:
    report = Report("kafka", tuple(reach(kafka)))
    return report.status, "; ".join(found.finding for found in report.bad)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for another host than ours, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=elsewhere.test"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True, timeout=60)
    return certificate, key


@contextmanager
def tls_listener(certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def shake(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    with listener(shake) as address:
        yield address


def test_a_certificate_of_an_unknown_ca_is_told_as_such(certificate: tuple[Path, Path]) -> None:
    with tls_listener(certificate) as address:
        status, text = told({"bootstrap.servers": address, "security.protocol": "SSL"})
    assert (status, "TLS: the broker's certificate is not trusted" in text) == (Status.FAIL, True), text


def test_a_certificate_for_another_host_is_told_as_such(certificate: tuple[Path, Path]) -> None:
    with tls_listener(certificate) as address:
        kafka = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}
        status, text = told(kafka)
    assert (status, "TLS: the broker's certificate is not trusted" in text) == (Status.FAIL, True), text


def test_plain_text_to_a_tls_port_is_told_as_such(certificate: tuple[Path, Path]) -> None:
    with tls_listener(certificate) as address:
        status, text = told({"bootstrap.servers": address})
    assert (status, "expects another security.protocol" in text) == (Status.FAIL, True), text


def test_tls_to_a_plain_port_is_told_as_such(kafka: Broker) -> None:
    status, text = told({"bootstrap.servers": kafka.bootstrap, "security.protocol": "SSL"})
    assert (status, "TLS: the broker speaks without TLS on this port" in text) == (Status.FAIL, True), text


def test_a_host_that_is_not_known_and_a_port_where_nobody_is_are_told_apart() -> None:
    assert "no such host" in told({"bootstrap.servers": "nobody.invalid:9092"})[1]
    assert "nothing takes connections there" in told({"bootstrap.servers": "127.0.0.1:1"})[1]


def test_one_dead_address_of_several_is_a_warning(kafka: Broker) -> None:
    status, text = told({"bootstrap.servers": f"{kafka.bootstrap},127.0.0.1:1"})
    assert (status, "127.0.0.1:1" in text) == (Status.WARN, True)
