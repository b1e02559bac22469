"""librdkafka's settings follow from Java's where both mean the same, and are asked for where they do not."""

from __future__ import annotations

import pytest

from reconsume.spark.consumer.client import native_client

SERVERS = {"bootstrap.servers": "h:9092"}
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="a\\"b\\\\c";'


def test_what_both_clients_have_is_taken_over_and_what_only_java_has_is_left_out() -> None:
    kafka = {**SERVERS, "compression.type": "zstd", "acks": "0", "max.request.size": "5", "client.id": "ship"}
    assert native_client(kafka, None) == {**SERVERS, "compression.type": "zstd", "client.id": "ship"}


def test_a_login_and_pem_files_are_translated() -> None:
    kafka = {
        **SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": SCRAM,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "pem",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.certificate.chain": "CHAIN",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert native_client(kafka, None) == {
        **SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": "/ca.pem",
        "ssl.key.pem": "KEY",
        "ssl.certificate.pem": "CHAIN",
        "ssl.endpoint.identification.algorithm": "none",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.truststore.location", "/trust.jks"),
        ("ssl.truststore.password", "secret"),
        ("sasl.login.callback.handler.class", "com.example.Login"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;"),
    ],
)
def test_what_has_no_counterpart_is_named_and_asked_for(name: str, value: str) -> None:
    kafka = {**SERVERS, "security.protocol": "SASL_SSL", name: value}
    with pytest.raises(ValueError, match=f"^{name} cannot be translated for librdkafka.*client=") as refused:
        native_client(kafka, None)
    assert value not in str(refused.value)
    given = {**SERVERS, "security.protocol": "SASL_SSL", "ssl.ca.location": "/ca.pem"}
    assert native_client(kafka, given) == given


def test_brokers_must_be_named_and_no_property_brings_code_along() -> None:
    with pytest.raises(ValueError, match="write the brokers"):
        native_client({"acks": "all"}, None)
    with pytest.raises(ValueError, match="loads a library"):
        native_client(SERVERS, {**SERVERS, "plugin.library.paths": "/tmp/x.so"})
