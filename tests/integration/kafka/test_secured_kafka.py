"""A broker with TLS and a login: each thing that is wrong is told by its own sentence, and mended without a restart."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers
from reconsume.sidecar.settings.kafka import Kafka
from reconsume.topics.acls import GroupShape, User, permissions_of
from reconsume.topics.names import Kind
from tests.integration.kafka.token_server import token_server
from tests.support.canary import CANARY, betrays
from tests.support.kafka.certificates import Authority
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.secured import SecuredKafka, secured_kafka
from tests.support.kafka.topic_io import produce
from tests.support.service.listener import listener
from tests.support.service.service import Service
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.process import SidecarProcess

SECONDS = 30.0
PASSWORD = f"right-{CANARY}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("brokers")) as kafka:
        kafka.set_password("sidecar", PASSWORD)
        yield kafka


def scram(secured: SecuredKafka, password: str = PASSWORD) -> dict[str, str]:
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "sidecar", "sasl_password": password}
    return secured.client("SASL_SSL", **login)


def refusal(kafka: dict[str, str]) -> Unreachable:
    found = answers(kafka)
    assert isinstance(found, Unreachable), found
    assert not betrays(found.finding + found.mend)
    return found


# --- each fault by its own sentence ----------------------------------------------------------------------------------


def test_with_the_right_credentials_the_broker_answers(secured: SecuredKafka) -> None:
    assert answers(scram(secured)) == [secured.address]


def test_a_wrong_password_is_told_as_such(secured: SecuredKafka) -> None:
    found = refusal(scram(secured, f"wrong-{CANARY}"))
    assert "SASL: the login is refused" in found.finding
    assert "kafka.sasl.password" in found.mend


def test_an_unknown_ca_is_told_as_such(secured: SecuredKafka, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    found = refusal({**scram(secured), "ssl.ca.location": str(other.file)})
    assert found.finding.endswith("the broker's certificate is not trusted: its CA is not known here")
    assert "kafka.ssl.ca.location" in found.mend


def test_another_name_is_told_as_such(secured: SecuredKafka) -> None:
    address = secured.address.replace("localhost", "127.0.0.1")
    found = refusal({**scram(secured), "bootstrap.servers": address})
    assert found.finding.endswith("the broker's certificate is not trusted: it is for another name")
    assert "kafka.bootstrap.servers" in found.mend


@contextmanager
def tls_port(authority: Authority, folder: Path, *, expired: bool = False, mutual: bool = False) -> Iterator[str]:
    """Where somebody shakes hands by TLS as a broker does."""
    certificate, key = authority.issue("localhost", expired=expired)
    (folder / "server.pem").write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    if mutual:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED

    def shake(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    with listener(shake) as address:
        yield address.replace("127.0.0.1", "localhost")


def test_an_expired_certificate_is_told_as_such(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "brokers")
    with tls_port(authority, tmp_path, expired=True) as address:
        trusted = {"ssl.ca.location": str(authority.file)}
        found = refusal({"bootstrap.servers": address, "security.protocol": "SSL", **trusted})
    assert found.finding.endswith("the broker's certificate is not trusted: it has expired")
    assert "renew" in found.mend


@pytest.mark.parametrize("ours", ["none", "expired"])
def test_a_certificate_of_ours_that_is_refused_is_told_as_such(tmp_path: Path, ours: str) -> None:
    authority = Authority(tmp_path, "brokers")
    kafka = {"security.protocol": "SSL", "ssl.ca.location": str(authority.file)}
    if ours == "expired":
        for name, content in zip(("certificate", "key"), authority.issue("me.test", expired=True), strict=True):
            (tmp_path / f"user.{name}").write_bytes(content)
            kafka[f"ssl.{name}.location"] = str(tmp_path / f"user.{name}")
    with tls_port(authority, tmp_path, mutual=True) as address:
        found = refusal({"bootstrap.servers": address, **kafka})
    assert "TLS: the broker does not accept our certificate" in found.finding
    assert "kafka_secret" in found.mend


def test_the_command_line_says_it_and_ends_with_1(secured: SecuredKafka, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"wrong-{CANARY}")
    kafka = {name: value for name, value in scram(secured).items() if name != "sasl.password"}
    kafka["sasl.password.file"] = str(tmp_path / "password")
    tree = {"group": "g", "topics": ["t"], "kafka": kafka, "deliver": {"url": "http://127.0.0.1:1/"}}
    file = tmp_path / "reconsume.yaml"
    file.write_text(json.dumps(tree))
    said = reconsume("doctor", "-c", file, "-o", "json")
    assert said.exit_code == 1
    assert "SASL: the login is refused" in said.stdout
    shown = reconsume("config", "show", "-c", file)
    assert (shown.exit_code, "sasl.password.file" in shown.stdout) == (0, True)
    (tmp_path / "password").unlink()
    gone = reconsume("topics", "check", "-c", file)
    assert gone.exit_code == 78
    assert "sasl.password.file" in gone.stderr
    assert not any(betrays(result.stdout + result.stderr) for result in (said, shown, gone))


# --- a running sidecar -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sidecar_that_is_refused_says_why_and_works_once_it_is_mended(secured: SecuredKafka, tmp_path: Path) -> None:
    group = create_group(fresh_group(secured.bootstrap), also=(Kind.POLICY,))
    secured.guarded.allow("sidecar", permissions_of(User.SIDECAR, GroupShape(group.names, group.mains, group.delays)))
    password = tmp_path / "password"
    password.write_text(f"wrong-{CANARY}\n")
    kafka = {name: value for name, value in scram(secured).items() if name != "sasl.password"}
    kafka["sasl.password.file"] = str(password)
    with (
        Service(tmp_path / "ledger") as service,
        SidecarProcess(group, service.url, tmp_path, overrides={"kafka": kafka}) as sidecar,
    ):
        line = sidecar.wait_log("kafka-unreachable", SECONDS)
        assert "SASL: the login is refused" in line
        assert "kafka.sasl.username and kafka.sasl.password" in line
        assert "SASL: the login is refused" in sidecar.status()["last_error"]
        assert sidecar.request("GET", "/livez").status == 200
        password.write_text(f"{PASSWORD}\n")
        sidecar.wait_ready(2 * SECONDS)
        produce(secured.bootstrap, group.main, [b"%d" % number for number in range(20)])
        sidecar.until(lambda: len(service.ledger.taken()) == 20, SECONDS, "all are taken")
        sidecar.wait_log("kafka-answers", SECONDS)
        password.unlink()
        assert "sasl.password.file" in sidecar.wait_log("credentials-unreadable", SECONDS)
        produce(secured.bootstrap, group.main, [b"%d" % number for number in range(20, 40)])
        sidecar.until(lambda: len(service.ledger.taken()) == 40, SECONDS, "those after it are taken, too")
        outputs = [sidecar.request("GET", path).body for path in ("/status", "/metrics", "/v1/policy")]
        assert not any(map(betrays, outputs))
        assert sidecar.stop().code == 0
    assert not betrays(sidecar.log())


def test_a_token_of_an_oidc_endpoint_is_a_login(secured: SecuredKafka, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(CANARY)
    with token_server(CANARY) as tokens:
        login = {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_method": "oidc",
            "sasl_oauthbearer_token_endpoint_url": tokens.url,
            "sasl_oauthbearer_client_id": "sidecar",
        }
        kafka = secured.client("SASL_SSL", **login)
        good = Kafka({**kafka, "sasl.oauthbearer.client.secret.file": str(tmp_path / "password")})
        assert answers(good) == [secured.address]
        assert tokens.grants == ["sidecar"]
        found = refusal({**kafka, "sasl.oauthbearer.client.secret": f"wrong-{CANARY}"})
        assert "SASL: the token endpoint gives no token" in found.finding
        assert tokens.refusals >= 1
