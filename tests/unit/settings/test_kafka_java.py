"""The `kafka:` section in the words of Kafka's Java client, and what cannot be said in them."""

from __future__ import annotations

import pytest

from reconsume.sidecar.java.kafka_properties import to_java

SERVERS = {"bootstrap.servers": "b:1"}
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
FILES = {"/cert.pem": "a certificate\n", "/key.pem": KEY, "/old.pem": KEY.replace("PRIVATE", "RSA PRIVATE")}


def read(name: str) -> str:
    try:
        return FILES[name]
    except KeyError:
        raise FileNotFoundError(2, "No such file", name) from None


def java(**kafka: str) -> dict[str, str]:
    done = to_java({**SERVERS, **{name.replace("__", "."): value for name, value in kafka.items()}}, read)
    assert done.problems == []
    return {name: value for name, value in done.properties.items() if name != "bootstrap.servers"}


def problems(**kafka: str) -> list[str]:
    return to_java({name.replace("__", "."): value for name, value in kafka.items()}, read).problems


def test_what_tunes_the_sidecars_own_client_is_left_out() -> None:
    assert java(session__timeout__ms="6000", linger__ms="5", client__id="x", debug="all") == {}


def test_a_password_becomes_a_jaas_configuration_whose_quotes_cannot_be_broken_out_of() -> None:
    given = java(security__protocol="sasl_ssl", sasl__mechanisms="PLAIN", sasl__username="a", sasl__password='x" y\\;')
    assert given == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="x\\" y\\\\;";'
        ),
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_has_a_module_of_its_own(mechanism: str) -> None:
    given = java(sasl__mechanism=mechanism, sasl__username="a", sasl__password="b")
    assert given["sasl.mechanism"] == mechanism
    assert given["sasl.jaas.config"].startswith("org.apache.kafka.common.security.scram.ScramLoginModule required ")


def test_kerberos_logs_in_from_the_key_table() -> None:
    given = java(sasl__mechanisms="GSSAPI", sasl__kerberos__keytab="/k", sasl__kerberos__principal="p@R")
    assert given["sasl.kerberos.service.name"] == "kafka"
    assert given["sasl.jaas.config"] == (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        'keyTab="/k" principal="p@R";'
    )


def test_certificates_are_given_as_text_because_java_wants_both_parts_in_one() -> None:
    given = java(
        security__protocol="SSL",
        ssl__ca__location="/ca.pem",
        ssl__certificate__location="/cert.pem",
        ssl__key__location="/key.pem",
        ssl__key__password="secret",
        ssl__endpoint__identification__algorithm="none",
    )
    assert given == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "a certificate\n",
        "ssl.keystore.key": KEY,
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_a_pkcs12_store_stays_one() -> None:
    given = java(ssl__keystore__location="/k.p12", ssl__keystore__password="s", ssl__ca__pem="ca")
    assert given["ssl.keystore.type"] == "PKCS12"
    assert (given["ssl.keystore.location"], given["ssl.keystore.password"]) == ("/k.p12", "s")
    assert (given["ssl.truststore.type"], given["ssl.truststore.certificates"]) == ("PEM", "ca")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("enable.ssl.certificate.verification", "false", "Java's client always verifies"),
        ("ssl.cipher.suites", "ECDHE", "other names"),
        ("ssl.ca.location", "probe", "name the file"),
        ("ssl.crl.location", "/crl", "revocation lists"),
        ("ssl.engine.location", "/e.so", "no counterpart"),
        ("sasl.mechanisms", "OAUTHBEARER", "a Java class"),
        ("sasl.mechanisms", "GSSAPI", "needs sasl.kerberos.keytab"),
        ("ssl.certificate.location", "/cert.pem", "one is given without the other"),
        ("ssl.key.location", "/none.pem", "/none.pem cannot be read"),
    ],
)
def test_what_cannot_be_translated_is_named_with_the_way_out(name: str, value: str, says: str) -> None:
    told = problems(**{name: value})
    assert any(name.rpartition(".location")[0] in problem and says in problem for problem in told)
    assert all(problem.endswith("name it with --kafka-properties") for problem in told)


def test_a_key_that_java_cannot_read_is_refused_with_the_command_that_converts_it() -> None:
    [told] = problems(ssl__certificate__location="/cert.pem", ssl__key__location="/old.pem")
    assert "openssl pkcs8 -topk8" in told


def test_javas_own_behaviour_may_be_said_aloud() -> None:
    assert java(enable__ssl__certificate__verification="true") == {}


def test_no_secret_is_part_of_a_problem() -> None:
    told = problems(sasl__mechanisms="OAUTHBEARER", sasl__oauthbearer__client__secret="hush", sasl__password="hush2")
    assert told
    assert "hush" not in "\n".join(told)
