"""Kafka's Java client takes what the `kafka:` section is translated to: certificates, logins, and the file itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.jars import cache_folder, fetch, read_lock
from reconsume.sidecar.java.kafka_properties import properties_text, to_java
from reconsume.sidecar.java.spark_job import SPARK_LOCK

SOURCE = Path(__file__).with_name("CheckClient.java")
SERVERS = {"bootstrap.servers": "127.0.0.1:9"}
KAFKA = [jar for jar in read_lock(SPARK_LOCK) if jar.artifact == "kafka-clients"]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate of our own and its keys: plain, encrypted, and in the old form."""
    folder = tmp_path_factory.mktemp("pem")
    names = {name: str(folder / name) for name in ("cert.pem", "key.pem", "locked.pem", "pbes2.pem", "old.pem")}
    for command in (
        f"req -x509 -newkey rsa:2048 -nodes -subj /CN=test -keyout {names['key.pem']} -out {names['cert.pem']}",
        f"pkcs8 -topk8 -v1 PBE-SHA1-3DES -passout pass:secret -in {names['key.pem']} -out {names['locked.pem']}",
        f"pkcs8 -topk8 -v2 aes-256-cbc -passout pass:secret -in {names['key.pem']} -out {names['pbes2.pem']}",
        f"rsa -traditional -in {names['key.pem']} -out {names['old.pem']}",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, timeout=60)
    return names


def built(folder: Path, kafka: Mapping[str, str]) -> dict[str, str]:
    """What Java has read from our file, after its client was built from it."""
    done = to_java({**SERVERS, **kafka}, lambda name: Path(name).read_text("utf-8"))
    assert done.problems == []
    file = folder / "kafka.properties"
    file.write_text(properties_text(done.properties), "utf-8")
    slf4j = sorted(cache_folder().glob("org/slf4j/slf4j-api/*/*.jar"))
    path = os.pathsep.join(map(str, [*fetch(KAFKA), *slf4j]))
    run = subprocess.run(
        [str(find_java()), "-cp", path, str(SOURCE), str(file)], capture_output=True, text=True, timeout=100
    )
    assert run.stdout.endswith("built\n"), run.stdout + run.stderr[-3_000:]
    read = dict(line.split(" ", 1) for line in run.stdout.splitlines()[:-1])
    assert read == {name: value.replace("\n", "\\n") for name, value in done.properties.items()}
    return read


@pytest.mark.long
def test_a_certificate_with_a_locked_key_and_scram_are_taken(tmp_path: Path, pem: dict[str, str]) -> None:
    kafka = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": pem["cert.pem"],
        "ssl.certificate.location": pem["cert.pem"],
        "ssl.key.location": pem["locked.pem"],
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "a user",
        "sasl.password": '"; x\\y = é #!:',
    }
    assert built(tmp_path, kafka)["ssl.endpoint.identification.algorithm"] == ""


@pytest.mark.long
def test_pem_as_text_and_a_plain_password_are_taken(tmp_path: Path, pem: dict[str, str]) -> None:
    kafka = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": Path(pem["cert.pem"]).read_text(),
        "ssl.certificate.pem": Path(pem["cert.pem"]).read_text(),
        "ssl.key.pem": Path(pem["key.pem"]).read_text(),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": " b ",
    }
    assert "BEGIN CERTIFICATE" in built(tmp_path, kafka)["ssl.truststore.certificates"]


@pytest.mark.parametrize("key", ["old.pem", "pbes2.pem"])
def test_a_key_that_java_fails_on_is_refused_before_it_sees_it(pem: dict[str, str], key: str) -> None:
    kafka = {"ssl.certificate.location": pem["cert.pem"], "ssl.key.location": pem[key]}
    [problem] = to_java(kafka, lambda name: Path(name).read_text("utf-8")).problems
    assert "Java reads PKCS#8 keys, and none locked by PBES2" in problem
