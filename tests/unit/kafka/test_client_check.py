"""Properties are judged by the clients that they are for, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from reconsume.sidecar.kafka.client_check import absent_files, client_faults, without_files
from reconsume.sidecar.kafka.clients import CredentialRegistry, new_client, refuse
from reconsume.sidecar.settings.kafka import Kafka

SERVERS = {"bootstrap.servers": "kafka:9092"}
LOGIN = {"security.protocol": "SASL_SSL", "sasl.username": "ann", "sasl.password": "hunter2"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"message.timeout.ms": "120000"}, "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
        ({"delivery.timeout.ms": "120000"}, "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
        ({"max.in.flight.requests.per.connection": "10"}, "`max.in.flight` must be set <= 5"),
        ({"retries": "0"}, "`retries` must be set >= 1"),
        ({"queuing.strategy": "lifo"}, "`queuing.strategy` must be set to `fifo`"),
        ({"session.timeout.ms": "400000"}, "must be >= `session.timeout.ms`"),
        ({"receive.message.max.bytes": "1000"}, "receive.message.max.bytes"),
        (
            {"heartbeat.interval.ms": "20000"},
            "20000 must be below session.timeout.ms, which is 8000",
        ),
        ({"heartbeat.interval.ms": "6000", "session.timeout.ms": "6000"}, "must be below session.timeout.ms"),
        ({"linger.ms": "400000"}, "must be greater than `linger.ms`"),
        ({"group.protocol": "consumer", "session.timeout.ms": "8000"}, "It is defined broker side"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "NOPE"}, "ssl.cipher.suites failed"),
        ({"security.protocol": "SSL", "ssl.curves.list": "NOPE"}, "ssl.curves.list failed"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "no certificate"}, "from ssl.ca.pem: not in PEM format"),
        ({"security.protocol": "SSL", "ssl.key.pem": "no key"}, "ssl.key.pem failed"),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "none"}, "ssl.certificate.pem failed"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password must be set"),
        (LOGIN, "kafka.sasl.mechanism: is missing"),
        (LOGIN | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.password": ""}, "sasl.username and sasl.password"),
        (LOGIN | {"sasl.mechanism": "GSSAPI"}, "Kerberos (GSSAPI) is not in the client"),
        (LOGIN | {"sasl.mechanisms": "AWS_MSK_IAM"}, "use MSK's SASL/SCRAM"),
        (LOGIN | {"sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.oauthbearer.method: OAUTHBEARER needs a way"),
        (
            LOGIN | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
            "`sasl.oauthbearer.token.endpoint.url` is mandatory",
        ),
        ({"sasl.jaas.config": "ScramLoginModule required;"}, "kafka.sasl.jaas.config: is Java's: write sasl.mechanism"),
        ({"ssl.truststore.location": "/trust.jks"}, "kafka.ssl.truststore.location: is Java's trust store"),
        ({"value.deserializer": "org.apache.X"}, "kafka.value.deserializer: names a Java class"),
        ({"max.request.size": "5"}, "kafka.max.request.size: is Java's"),
    ],
)
def test_what_no_client_can_be_made_of_is_a_fault_with_its_sentence(given: Mapping[str, str], says: str) -> None:
    faults = client_faults(SERVERS | given)
    assert any(says in fault for fault in faults), faults
    assert "hunter2" not in "".join(faults)
    assert len(faults) == len(set(faults))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"message.max.bytes": "10485760"},
        {"message.max.bytes": "5000000"},
        {"message.max.bytes": "200000000"},
        {"fetch.max.bytes": "500000"},
        {"receive.message.max.bytes": "1000000"},
        {"heartbeat.interval.ms": "15000", "session.timeout.ms": "45000"},
        {"compression.type": "zstd", "linger.ms": "5", "batch.size": "16384"},
        {"group.protocol": "consumer"},
        LOGIN | {"sasl.mechanism": "SCRAM-SHA-512"},
        {
            **LOGIN,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "a",
            "sasl.oauthbearer.client.secret": "b",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
        },
    ],
)
def test_what_every_client_takes_is_no_fault(given: Mapping[str, str]) -> None:
    assert client_faults(SERVERS | given) == ()


def test_without_its_files_a_configuration_is_judged_by_all_the_rest(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate", encoding="utf-8")
    given = SERVERS | {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password.file": "/nowhere/password",
        "ssl.certificate.location": "/nowhere/tls.crt",
        "ssl.key.location": str(tmp_path / "ca.pem"),
    }
    kafka = Kafka(given, None)
    absent = absent_files(kafka)
    assert sorted(absent) == ["kafka.sasl.password.file", "kafka.ssl.certificate.location"]
    assert client_faults(without_files(kafka, absent)) == ()
    worse = Kafka(given | {"ssl.ca.location": str(tmp_path / "ca.pem"), "retries": "x"})
    assert any("kafka.retries" in fault for fault in client_faults(without_files(worse, absent)))
    folder = Kafka(SERVERS | {"security.protocol": "SASL_SSL"}, tmp_path / "user")
    assert absent_files(folder) == {"kafka_secret": tmp_path / "user"}
    assert client_faults(without_files(folder, absent_files(folder))) == ()


class Stop:
    """Asks for a stop at the second wait."""

    waits = 0

    def wait(self, timeout: float) -> bool:
        del timeout
        self.waits += 1
        return self.waits > 1


def test_a_client_that_cannot_be_made_at_run_time_is_told_until_it_can_be_made() -> None:
    registry = CredentialRegistry()
    credentials = registry.register("consumer-billing")
    assert new_client(Consumer, SERVERS | {"group.id": "g", "linger.ms": "soon"}, credentials, Stop()) is None
    assert "consumer-billing: no Kafka client can be made" in registry.refused_for(0.0)
    assert not registry.refused_for(60.0), "files that do not match for a moment are no reason to end"
    made = new_client(Consumer, {"group.id": "g"}, credentials, Stop())
    assert made is not None
    made.close()
    assert not registry.refused_for(0.0)


def test_the_time_of_a_refusal_counts_from_its_first_try() -> None:
    registry = CredentialRegistry()
    credentials = registry.register("consumer-billing")
    refuse(credentials, KafkaException(KafkaError(KafkaError._INVALID_ARG)))
    assert credentials.refused is not None
    first = credentials.refused.since
    credentials.refused = credentials.refused._replace(since=first - 61)
    refuse(credentials, KafkaException(KafkaError(KafkaError._INVALID_ARG)))
    assert registry.refused_for(60.0)
