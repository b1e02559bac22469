"""The kafka section: what is passed through, what is refused and why, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.kafka import FIXED, LIMITS
from reconsume.sidecar.settings.load import effective, load, load_with_origins
from reconsume.topics.masking import MASK
from tests.support.sidecar.settings import good, problems, write_good

SECRETS = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.jaas.config",
    "sasl.passwd",
    "my.apikey",
    "my.api_key",
    "aws.access.key.id",
    "proxy.credentials",
]
"""Properties of librdkafka, and others that look as if they held a secret."""


def test_any_other_property_is_passed_through_as_text(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    file.write_text(file.read_text().replace("9092", "9092\n  socket.nagle.disable: true\n  fetch.wait.max.ms: 10"))
    assert dict(load(file, environ={}).kafka) == {
        "bootstrap.servers": "localhost:9092",
        "socket.nagle.disable": "true",
        "fetch.wait.max.ms": "10",
    }


@pytest.mark.parametrize("name", FIXED)
def test_a_property_that_would_break_the_promise_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    (problem,) = problems(write_good(tmp_path), [f"kafka.{name}=other"])
    assert problem == f"kafka.{name} = other: cannot be set: {FIXED[name].why} (--set)"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, fixed in FIXED.items() for value in fixed.values])
def test_the_value_that_we_use_anyway_is_let_through(tmp_path: Path, name: str, value: str) -> None:
    assert good(tmp_path, f"kafka.{name}={value}").kafka[name] == value


def test_false_is_yamls_false_too(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    file.write_text(file.read_text().replace("9092", "9092\n  enable.auto.commit: false"))
    assert load(file, environ={}).kafka["enable.auto.commit"] == "false"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("kafka.transaction.timeout.ms=60000", "must be 5000 to 10000"),
        ("kafka.transaction.timeout.ms=soon", "must be a whole number of ms, such as 30000"),
        ("kafka.session.timeout.ms=30s", "must be a whole number of ms, such as 30000"),
        ("kafka.heartbeat.interval.ms=0.5", "must be a whole number of ms, such as 30000"),
        ("kafka.max.poll.interval.ms=5m", "must be a whole number of ms, such as 30000"),
        ("kafka.fetch.max.bytes=1MB", "must be a whole number of bytes, such as 1048576"),
        ("kafka.queue.buffering.max.kbytes=1MiB", "must be a whole number of KiB, such as 1024"),
        ("kafka.batch.size=128k", "must be a whole number of bytes"),
        *((f"kafka.{name}={limit.low - 1}", f"must be {limit.words}") for name, limit in LIMITS.items()),
        ("kafka.message.timeout.ms=-1", "must be at least 1000"),
        ("kafka.socket.timeout.ms=soon", "must be a whole number of ms"),
        ("kafka.retry.backoff.ms=60000", "must be at most 5000"),
        ("kafka.group.protocol=fast", "must be classic or consumer"),
        *((f"kafka.{name}=print", "is code") for name in ("error_cb", "logger", "on_commit", "on_delivery")),
        ("kafka.default.topic.config=x", "write the properties in it as properties of their own"),
        ("kafka.delivery.report.only.error=false", "cannot be set: a committed transaction proves its records"),
        ("kafka={bootstrap: {servers: x}}", "must be written flat, with dots: bootstrap.servers"),
        ("kafka={bootstrap.servers: [a, b]}", "must be text, a number, true or false"),
        ("kafka={client.id: a}", "kafka.bootstrap.servers: is required"),
        ("kafka={bootstrap.servers: ''}", 'kafka.bootstrap.servers = "": is required'),
        ("kafka={bootstrap.servers: null}", "must be text, a number, true or false"),
    ],
)
def test_other_faults_of_a_property(tmp_path: Path, change: str, sentence: str) -> None:
    assert any(sentence in problem for problem in problems(write_good(tmp_path), [change]))


def test_a_longer_poll_interval_allows_a_longer_lock(tmp_path: Path) -> None:
    assert good(tmp_path, "lock_timeout=6m", "kafka.max.poll.interval.ms=600000").lock_timeout == 360_000


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_masked_in_what_is_shown(tmp_path: Path, name: str) -> None:
    loaded = load_with_origins(write_good(tmp_path), [f"kafka.{name}=hunter2"], {})
    shown = {row.key: row.value for row in effective(loaded)}
    assert shown[f"kafka.{name}"] == MASK
    assert "hunter2" not in repr(loaded.settings)
    assert loaded.settings.kafka[name] == "hunter2"


@pytest.mark.parametrize(
    "change",
    [
        "kafka={bootstrap.servers: b, sasl.password: [hunter2]}",
        "kafka=sasl.password=hunter2",
        "kafka={sasl.password: hunter2",
        "kafka={sasl.password: *hunter2}",
        "kafka_sasl_password=hunter2",
        "sasl.password=hunter2",
        "deliver.url=http://user:hunter2@127.0.0.1/",
        "deliver.health_url=http://user:hunter2@example.com/",
        "deliver.url=http://user:a@hunter2@127.0.0.1/",
        "deliver.url=http://user:a@b/hunter2@127.0.0.1/",
        "deliver.passwd=hunter2",
        "api_key=hunter2",
    ],
)
def test_no_fault_shows_a_secret(tmp_path: Path, change: str) -> None:
    found = problems(write_good(tmp_path), [change])
    assert found
    assert "hunter2" not in "".join(found)


def test_a_broken_file_does_not_show_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("kafka:\n  sasl.password: *hunter2\n", encoding="utf-8")
    assert "hunter2" not in "".join(problems(file))


def test_the_properties_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        good(tmp_path).kafka["acks"] = "0"  # type: ignore[index]


def test_a_config_error_holds_one_sentence_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        good(tmp_path, "kafka.acks=1", "kafka.group.id=x")
    assert len(caught.value.problems) == 2
