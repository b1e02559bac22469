"""Certificates are judged in one place: by chain, and by the names that they list."""

from __future__ import annotations

import ast
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from reconsume.sidecar.core.outcome import COMMITTED, NotSent
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials
from reconsume.sidecar.delivery.push.credentials import CA
from reconsume.sidecar.kafka.credentials.reachability import distrust
from tests.integration.delivery.test_push_tls import outcomes
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService

ROOT = Path(__file__).resolve().parents[2]


def self_signed(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate for the common name `localhost` with these alternative names, and a server's TLS with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
    pem = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    certificate, both = folder / "certificate", folder / "both"
    certificate.write_bytes(pem)
    both.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return certificate, context


@pytest.mark.parametrize("names", [(), ("localhost",)])
def test_a_common_name_alone_proves_no_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Given a certificate that an internal CA made without alternative names, then nothing is sent to its server."""
    certificate, context = self_signed(tmp_path, *names)
    access = Access(ServiceCredentials({CA: certificate}, secure=True))
    with StubService([stub.ok], context=context) as service:
        url = service.url.replace("127.0.0.1", "localhost")
        assert outcomes(url, access) == [COMMITTED if names else NotSent("tls-wrong-name")]
        assert len(service.requests) == len(names)


def test_doctor_says_of_a_broker_that_its_certificate_is_for_another_name(tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with StubService([stub.ok], context=context) as service:
        address = service.url.partition("://")[2].partition("/")[0].replace("127.0.0.1", "localhost")
        found = distrust([address], {"ssl.ca.location": str(certificate)})
    assert found is not None
    assert found[1].cause == "it is for another name"


def test_every_tls_context_of_a_client_is_made_in_one_place() -> None:
    made = {
        f"{file.relative_to(ROOT)}: {ast.unparse(node)}"
        for package in ("sidecar", "spark", "once", "topics", "reconsume")
        for file in (ROOT / package).rglob("*.py")
        if file.name != "tls_context.py"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("SSLContext", "create_default_context"))
    }
    assert made == set()
