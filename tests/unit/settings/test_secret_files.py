"""Secrets in mounted files: read when a client needs them, never shown, and every fault told at once."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.kafka import FILED, Kafka
from reconsume.sidecar.settings.load import effective, load_with_origins
from tests.support.canary import CANARY, betrays
from tests.support.sidecar.settings import good, problems, write_good

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="billing" password="{}";'
Fill = Callable[[Path], None]


def secret(folder: Path, name: str = "password", text: str = f"{CANARY}\n") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def faults(kafka: Kafka) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        dict(kafka)
    return caught.value.problems


# --- one property, one file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FILED))
def test_a_secret_may_stand_in_a_file(tmp_path: Path, name: str) -> None:
    settings = good(tmp_path, f"kafka.{name}.file={secret(tmp_path)}")
    assert settings.kafka[name] == CANARY
    assert dict(settings.kafka) == {"bootstrap.servers": "localhost:9092", name: CANARY}


def test_only_the_ends_of_lines_are_cut_off(tmp_path: Path) -> None:
    path = secret(tmp_path, text="  a b\t\r\n\n")
    assert good(tmp_path, f"kafka.sasl.password.file={path}").kafka["sasl.password"] == "  a b\t"


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    environ = {"RECONSUME_KAFKA__SASL_PASSWORD_FILE": str(secret(tmp_path))}
    assert good(tmp_path, **environ).kafka["sasl.password"] == CANARY


def test_nothing_is_read_before_a_client_needs_it(tmp_path: Path) -> None:
    settings = good(tmp_path, "kafka.sasl.password.file=/nowhere/password", "kafka.ssl.ca.location=/nowhere/ca.crt")
    assert settings.kafka["bootstrap.servers"] == "localhost:9092"
    assert settings.kafka.get("group.protocol") is None
    assert faults(settings.kafka) == [
        "kafka.sasl.password.file = /nowhere/password: cannot be read: No such file or directory",
        "kafka.ssl.ca.location = /nowhere/ca.crt: cannot be read: No such file or directory",
    ]


def test_what_was_read_stays_until_it_is_read_anew(tmp_path: Path) -> None:
    kafka = good(tmp_path, f"kafka.sasl.password.file={secret(tmp_path)}").kafka
    assert kafka["sasl.password"] == CANARY
    secret(tmp_path, text="other")
    assert (kafka["sasl.password"], kafka.fresh()["sasl.password"]) == (CANARY, "other")


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff" + CANARY.encode(), "is not UTF-8"),
        (b"x" * 70_000, "it has more than"),
    ],
)
def test_a_file_that_holds_no_secret_is_told_without_what_it_holds(tmp_path: Path, held: bytes, says: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(held)
    (problem,) = faults(good(tmp_path, f"kafka.sasl.password.file={path}").kafka)
    assert says in problem
    assert not betrays(problem)


def test_a_secret_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), [f"kafka.sasl.password={CANARY}", "kafka.sasl.password.file=/x"])
    assert problem == "kafka.sasl.password.file = /x: is given twice: sasl.password is there too (--set)"


def test_a_secret_in_the_place_of_its_path_is_refused_and_not_shown(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), [f"kafka.sasl.password.file={CANARY}"])
    assert "must be the absolute path of a file that holds it" in problem
    assert not betrays(problem)


# --- the secret of a KafkaUser ---------------------------------------------------------------------------------------


def test_the_secret_of_a_scram_user_is_one_setting(tmp_path: Path) -> None:
    secret(tmp_path, "sasl.jaas.config", JAAS.format(CANARY))
    secret(tmp_path)
    assert dict(good(tmp_path, f"kafka_secret={tmp_path}").kafka) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "billing",
        "sasl.password": CANARY,
    }


def test_quotes_in_a_password_are_read_as_java_reads_them(tmp_path: Path) -> None:
    secret(tmp_path, "sasl.jaas.config", JAAS.format(r"a\"b\\c"))
    assert good(tmp_path, f"kafka_secret={tmp_path}").kafka["sasl.password"] == 'a"b\\c'


def tls_user(folder: Path) -> None:
    for name in ("ca.crt", "user.crt", "user.key", "user.p12", "user.password"):
        secret(folder, name)


def test_the_secret_of_a_tls_user_gives_its_keys_and_never_its_ca(tmp_path: Path) -> None:
    """The `ca.crt` beside them is the CA of the clients: it says nothing of the brokers."""
    tls_user(tmp_path)
    assert dict(good(tmp_path, f"kafka_secret={tmp_path}").kafka) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SSL",
        "ssl.certificate.location": str(tmp_path / "user.crt"),
        "ssl.key.location": str(tmp_path / "user.key"),
    }


def test_what_the_configuration_says_itself_wins(tmp_path: Path) -> None:
    secret(tmp_path, "sasl.jaas.config", JAAS.format(CANARY))
    sets = ("kafka.security.protocol=SASL_PLAINTEXT", "kafka.sasl.mechanisms=SCRAM-SHA-256", "kafka.sasl.username=me")
    kafka = good(tmp_path, f"kafka_secret={tmp_path}", *sets).kafka
    assert (kafka["security.protocol"], kafka["sasl.username"], "sasl.mechanism" in kafka) == (
        "SASL_PLAINTEXT",
        "me",
        False,
    )


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (lambda folder: None, "holds neither user.crt and user.key"),
        (lambda folder: folder.rmdir(), "there is no such folder"),
        (lambda folder: secret(folder, "user.crt"), "holds neither"),
        (lambda folder: secret(folder, "sasl.jaas.config"), "none of SCRAM"),
        (lambda folder: secret(folder, "sasl.jaas.config", ""), "is empty"),
    ],
)
def test_a_folder_without_a_users_secret_is_told_as_such(tmp_path: Path, fill: Fill, says: str) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    fill(folder)
    (problem,) = faults(good(tmp_path, f"kafka_secret={folder}").kafka)
    assert problem.startswith(f"kafka_secret = {folder}: ")
    assert says in problem
    assert not betrays(problem)


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_config_show_names_the_file_and_never_what_it_holds(tmp_path: Path) -> None:
    loaded = load_with_origins(write_good(tmp_path), [f"kafka.sasl.password.file={secret(tmp_path)}"], {})
    dict(loaded.settings.kafka)
    rows = {row.key: (row.value, row.origin) for row in effective(loaded)}
    assert rows["kafka.sasl.password.file"] == (str(tmp_path / "password"), "--set")
    assert "kafka.sasl.password" not in rows


def test_settings_in_a_traceback_show_no_secret(tmp_path: Path) -> None:
    settings = good(tmp_path, f"kafka.sasl.password.file={secret(tmp_path)}")
    dict(settings.kafka)
    try:
        raise RuntimeError(repr(settings), repr(settings.kafka))
    except RuntimeError:
        assert not betrays(traceback.format_exc())


def test_the_same_configuration_is_equal_without_reading_anything(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    sets = ("kafka.sasl.password.file=/nowhere",)
    assert load(file, sets, {}) == load(file, sets, {})
    assert load(file, sets, {}) != load(file, ("kafka_secret=/nowhere",), {})
