"""Several `-c`: which settings are the process's, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.process_settings import load_groups, shared_memory

GROUPS = ("billing", "shipping")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The smallest configurations of two groups with one base."""
    (tmp_path / "common.yaml").write_text("kafka: {bootstrap.servers: 'localhost:9092'}\n")
    paths = [tmp_path / f"{group}.yaml" for group in GROUPS]
    for path, group in zip(paths, GROUPS, strict=True):
        url = f"http://127.0.0.1:8080/{group}"
        path.write_text(f"base: common.yaml\ngroup: {group}\ntopics: [{group}-in]\ndeliver: {{url: '{url}'}}\n")
    return paths


def add(file: Path, line: str) -> None:
    """Add a line to a file."""
    file.write_text(f"{file.read_text()}{line}\n")


def settings_of(files: list[Path], *sets: str, **environ: str) -> list[Settings]:
    """The settings of all groups."""
    return [one.settings for one in load_groups(files, sets, environ)]


def problems_of(files: list[Path], *sets: str, **environ: str) -> list[str]:
    """The sentences with which several files are refused."""
    with pytest.raises(ConfigError) as caught:
        settings_of(files, *sets, **environ)
    return caught.value.problems


def test_each_file_describes_one_group_over_the_base_that_they_share(files: list[Path]) -> None:
    both = settings_of(files)
    assert [one.group for one in both] == list(GROUPS)
    assert {one.kafka["bootstrap.servers"] for one in both} == {"localhost:9092"}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("api: {listen: '127.0.0.1:9999'}", lambda one: one.api.listen.port == 9999),
        ("log: {level: debug}", lambda one: one.log.level == "debug"),
        ("ui: true", lambda one: one.ui.enabled),
        ("operators: {token_file: /run/operators}", lambda one: one.operators.token_file == "/run/operators"),
        ("view: {folder: /var/view}", lambda one: one.view.folder == "/var/view"),
        ("drain_timeout: 20s", lambda one: one.drain_timeout == 20_000),
    ],
)
def test_a_setting_of_the_process_that_one_file_has_holds_for_all_groups(
    files: list[Path], line: str, read: object
) -> None:
    add(files[1], line)
    assert callable(read)
    assert [read(one) for one in settings_of(files)] == [True, True]


def test_two_values_of_a_setting_of_the_process_are_refused_with_both_places(files: list[Path]) -> None:
    add(files[0], "log: {level: debug}")
    add(files[1], "log: {level: error}")
    (problem,) = problems_of(files)
    assert problem.startswith("log.level: debug (")
    assert "billing.yaml, line 5) and error (" in problem
    assert "shipping.yaml, line 5) differ, and it is about the whole process" in problem


def test_equal_values_in_both_files_are_no_contradiction(files: list[Path]) -> None:
    for file in files:
        add(file, "log: {level: debug}")
    assert [one.log.level for one in settings_of(files)] == ["debug", "debug"]


def test_a_variable_or_set_gives_settings_of_the_process_alone(files: list[Path]) -> None:
    both = settings_of(files, "log.level=error", RECONSUME_API__LISTEN="127.0.0.1:9998")
    assert {(one.log.level, one.api.listen.port) for one in both} == {("error", 9998)}
    problems = problems_of(files, "start=latest", RECONSUME_DELIVER__TIMEOUT="5s")
    assert [problem.partition(":")[0] for problem in problems] == ["deliver.timeout", "start"]
    assert all("with several -c only settings of the process" in problem for problem in problems)


def test_a_group_in_two_files_is_refused(files: list[Path]) -> None:
    files[1].write_text(files[0].read_text())
    (problem,) = problems_of(files)
    assert problem == f"group = billing: {files[0]} and {files[1]} are both about it; leave one of them out"


def test_the_faults_of_all_files_are_reported_together_each_with_its_file(files: list[Path]) -> None:
    add(files[0], "start: never")
    files[1].unlink()
    problems = problems_of(files)
    assert any(problem.startswith(f"{files[0]}: start = never") for problem in problems)
    assert f"{files[1]}: there is no such file" in problems


def test_a_file_that_names_groups_is_no_file_of_a_group(files: list[Path]) -> None:
    files[1].write_text("base: common.yaml\nui: {groups: ['*']}\n")
    assert f"{files[1]}: group: is required in each file of several -c" in problems_of(files)


@pytest.mark.parametrize(("groups", "bytes_"), [(2, 16 << 20), (16, 16 << 20), (20, 20 << 20)])
def test_the_memory_is_the_process_s_and_at_least_a_mebibyte_for_each_group(groups: int, bytes_: int) -> None:
    assert shared_memory(16 << 20, groups) == bytes_
