"""Each release of Kafka that can be embedded has a whole lock file, and what tests it asks for is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.releases import RELEASES, USUAL, lock_of
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.java.jars import read_lock
from tests.support.kafka.broker import release_of
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import by_protocol

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EASILY_MISSED = {
    "com.typesafe.scala-logging:scala-logging_2.13",
    "org.apache.logging.log4j:log4j-slf4j-impl",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
    "com.github.luben:zstd-jni",
}


@pytest.mark.parametrize("release", RELEASES)
def test_a_lock_has_each_jar_once_and_kafka_of_one_patch(release: str) -> None:
    jars = read_lock(lock_of(release))
    names = [f"{jar.group}:{jar.artifact}" for jar in jars]
    assert len(set(names)) == len(names) > 40
    assert set(names) >= EASILY_MISSED
    assert all(jar.size > 0 for jar in jars)
    (patch,) = {jar.version for jar in jars if jar.group == "org.apache.kafka"}
    assert patch.startswith(f"{release}.")
    assert patch in lock_of(release).read_text(encoding="utf-8").splitlines()[0], "and its first line says which"


def test_the_usual_one_can_be_embedded_and_so_can_a_newer_one() -> None:
    assert USUAL in RELEASES
    assert list(RELEASES) == sorted(RELEASES, key=lambda release: tuple(map(int, release.split("."))))


def test_an_unknown_release_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        lock_of("2.8")
    assert caught.value.problems == ["Kafka 2.8 cannot be embedded; known are 3.9, 4.0, 4.3, 4.4"]
    shown = reconsume("dev", "broker", "--kafka", "2.8")
    assert shown.exit_code == 2
    assert "--kafka 2.8: known are 3.9, 4.0, 4.3, 4.4" in shown.stderr


@pytest.mark.parametrize(
    ("kind", "release"),
    [
        ("embedded", USUAL),
        ("embedded:3.9", "3.9"),
        ("3.9", "3.9"),
        ("embedded:2.8", "2.8"),
        ("testcontainers", None),
        ("localhost:9092", None),
        ("3.9:9092", None),
    ],
)
def test_the_option_of_a_test_run_says_which_release(kind: str, release: str | None) -> None:
    assert release_of(kind) == release


def test_the_times_of_a_group_of_the_newer_protocol_are_left_to_the_broker() -> None:
    config = {"group": "g", "kafka": {"bootstrap.servers": "x:1", "session.timeout.ms": 2_000}}
    assert by_protocol(config, "classic") == config
    assert by_protocol(config, "consumer") == {
        "group": "g",
        "kafka": {"group.protocol": "consumer", "bootstrap.servers": "x:1"},
    }


def test_make_compat_tries_each_release_with_each_protocol_that_it_has() -> None:
    """KIP-848 is there from Kafka 4.0 on."""
    (runs,) = re.findall(r"^COMPAT_RUNS \?= (.+)$", MAKEFILE, re.MULTILINE)
    protocols = {release: ["classic"] if release == "3.9" else ["classic", "consumer"] for release in RELEASES}
    assert runs.split() == [f"{release}:{protocol}" for release, all_ in protocols.items() for protocol in all_]
    (flows,) = re.findall(r"^COMPAT_FLOWS := (.+)$", MAKEFILE, re.MULTILINE)
    assert [flow for flow in flows.split() if not (ROOT / f"tests/flow/{flow}.py").is_file()] == []
    assert "compat" not in (ROOT / ".ci" / "run").read_text(encoding="utf-8"), "it takes too long for every change"
