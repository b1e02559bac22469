"""File, environment and --set: which one wins, how a text is read, and where a value says that it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.load import effective, load, load_with_origins
from tests.support.sidecar.settings import GOOD, good, problems, write_good


def origins(file: Path, sets: tuple[str, ...] = (), **environ: str) -> dict[str, str]:
    return {row.key: row.origin for row in effective(load_with_origins(file, sets, environ))}


def test_the_environment_wins_over_the_file_and_set_over_both(tmp_path: Path) -> None:
    file = write_good(tmp_path, "retry: {max_reconsume_times: 1, max_deaths: 1, ordered_interval: 2s}\n")
    environ = {"RECONSUME_RETRY__MAX_RECONSUME_TIMES": "2", "RECONSUME_RETRY__MAX_DEATHS": "2"}
    retry = load(file, ["retry.max_reconsume_times=3"], environ).retry
    assert (retry.ordered_interval, retry.max_deaths, retry.max_reconsume_times) == (2000, 2, 3)


def test_the_later_set_wins(tmp_path: Path) -> None:
    assert good(tmp_path, "start=latest", "start=earliest").start == "earliest"


def test_everything_may_come_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {
        "RECONSUME_GROUP": "billing",
        "RECONSUME_TOPICS": '["orders", {"name": "invoices", "tags": "TagA||TagB"}]',
        "RECONSUME_KAFKA__BOOTSTRAP_SERVERS": "b:9092",
        "RECONSUME_KAFKA__LOG_LEVEL": "7",
        "RECONSUME_DELIVER__URL": "http://127.0.0.1:1/",
        "RECONSUME_DELIVER__BATCH__MAX_SIZE": "32",
        "RECONSUME_RETRY__LADDER__INITIAL": "1s",
    }
    settings = load(environ=environ)
    assert settings.topic_names == ("orders", "invoices")
    assert dict(settings.kafka) == {"bootstrap.servers": "b:9092", "log_level": "7"}
    assert settings.deliver.batch.max_size == 32
    assert settings.ladder.delays[0] == 1000


def test_reconsume_yaml_is_read_where_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_good(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).group == "billing"


@pytest.mark.parametrize("text", ["1e3", "0x10", "true", "123", "2026-01-01"])
def test_a_name_from_the_environment_is_never_read_as_a_number(tmp_path: Path, text: str) -> None:
    assert good(tmp_path, RECONSUME_GROUP=text).group == text


@pytest.mark.parametrize("text", ["", "null", "~"])
def test_null_from_outside_unsets_what_may_be_null(tmp_path: Path, text: str) -> None:
    file = write_good(tmp_path, "api: {token_file: /run/token}\n")
    assert load(file, [f"api.token_file={text}"], {}).api.token_file is None


def test_set_reaches_a_kafka_property_with_its_dots(tmp_path: Path) -> None:
    assert good(tmp_path, "kafka.sasl.mechanism=SCRAM-SHA-256").kafka["sasl.mechanism"] == "SCRAM-SHA-256"


def test_set_replaces_a_whole_value(tmp_path: Path) -> None:
    file = write_good(tmp_path, "retry: {ladder: {initial: 9s, multiplier: 3}}\n")
    assert load(file, ["retry.ladder=[1s, 2s]"], {}).ladder.delays == (1000, 2000)


def test_variables_of_a_kubernetes_service_of_our_name_are_no_settings(tmp_path: Path) -> None:
    links = {
        "RECONSUME_SERVICE_HOST": "10.0.0.1",
        "RECONSUME_SERVICE_PORT": "80",
        "RECONSUME_SERVICE_PORT_HTTP": "80",
        "RECONSUME_PORT": "tcp://10.0.0.1:80",
        "RECONSUME_PORT_80_TCP_ADDR": "10.0.0.1",
        "RECONSUME_API_SERVICE_HOST": "10.0.0.1",
    }
    assert good(tmp_path, **links).group == "billing"


def test_variables_of_the_embedded_broker_are_no_settings(tmp_path: Path) -> None:
    assert good(tmp_path, RECONSUME_CACHE="/c", RECONSUME_MAVEN_MIRROR="http://m").group == "billing"


def test_a_variable_that_is_no_setting_is_a_fault_that_names_it(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), environ={"RECONSUME_RETRY__MAX_RECONSME_TIMES": "3"})
    assert problem == (
        "retry.max_reconsme_times: unknown key; did you mean retry.max_reconsume_times? "
        "(RECONSUME_RETRY__MAX_RECONSME_TIMES)"
    )


@pytest.mark.parametrize("text", ["retry.max_reconsume_times", "=3", "retry..x=3", ""])
def test_a_set_that_is_not_key_value_is_a_fault(tmp_path: Path, text: str) -> None:
    (problem,) = problems(write_good(tmp_path), [text])
    assert problem.startswith("--set ")
    assert "must be key=value" in problem


def test_broken_yaml_in_a_set_is_a_fault_that_names_the_key(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), ["retry.levels=[1s,"])
    assert problem.startswith("retry.levels = [1s,: is not YAML")
    assert problem.endswith("(--set)")


def test_each_value_says_where_it_came_from(tmp_path: Path) -> None:
    file = write_good(tmp_path, "retry:\n  max_deaths: 4\n")
    found = origins(file, ("log.level=debug",), RECONSUME_KAFKA__SASL_PASSWORD="x")
    assert found["group"] == f"{file}, line 1"
    assert found["kafka.bootstrap.servers"] == f"{file}, line 4"
    assert found["retry.max_deaths"] == f"{file}, line 8"
    assert found["retry.ladder"] == "default"
    assert found["kafka.sasl.password"] == "RECONSUME_KAFKA__SASL_PASSWORD"
    assert found["log.level"] == "--set"


def test_a_section_whose_keys_are_commented_out_sets_nothing(tmp_path: Path) -> None:
    file = write_good(tmp_path, "retry:\n  # max_deaths: 4\nlog:\n")
    assert load(file, environ={}) == load(write_good(tmp_path), environ={})


def test_nothing_is_read_before_load_is_called(tmp_path: Path) -> None:
    """A second load of a changed file and environment gives other settings."""
    file = write_good(tmp_path)
    first = load(file, environ={})
    file.write_text(GOOD.replace("billing", "other"), encoding="utf-8")
    assert (first.group, load(file, environ={}).group) == ("billing", "other")
