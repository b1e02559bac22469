"""Several `-c` mean several groups, for every command; whatever else takes one value is refused a second time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.cli.test_every_command import NAMES, NEEDED, NO_CONFIGURATION, words_of
from tests.support.sidecar.cli import reconsume

GROUPS = ("billing", "shipping")
ALL_GROUPS = {"config check", "config show", "run", "drain", "groups", "ui"}
"""Commands that are about all groups of several `-c`."""
ONE_FILE = {"dev up", "init"}
"""Commands that take or write one file."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The configurations of two groups, and nothing answers at their brokers."""
    (tmp_path / "common.yaml").write_text("kafka: {bootstrap.servers: '127.0.0.1:1'}\n")
    paths = [tmp_path / f"{group}.yaml" for group in GROUPS]
    for path, group in zip(paths, GROUPS, strict=True):
        url = f"http://127.0.0.1:8080/{group}"
        path.write_text(f"base: common.yaml\ngroup: {group}\ntopics: [orders]\ndeliver: {{url: '{url}'}}\n")
    return paths


def options_of(files: list[Path]) -> list[str]:
    """`-c` for each file."""
    return [word for file in files for word in ("-c", str(file))]


@pytest.mark.parametrize(
    "words",
    [
        ["config", "check", "-c", "FIRST", "-c", "SECOND"],
        ["config", "-c", "FIRST", "check", "--config=SECOND"],
        ["-c", "FIRST", "config", "check", "-cSECOND"],
    ],
)
def test_several_configurations_are_several_groups_wherever_they_are_named(files: list[Path], words: list[str]) -> None:
    shown = reconsume(*(word.replace("FIRST", str(files[0])).replace("SECOND", str(files[1])) for word in words))
    assert shown.exit_code == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(row["file"], row["group"], row["good"]) for row in rows] == [
        (str(files[0]), "billing", True),
        (str(files[1]), "shipping", True),
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALL_GROUPS | ONE_FILE | NO_CONFIGURATION])
def test_a_command_about_one_group_asks_which_one(files: list[Path], name: str) -> None:
    shown = reconsume(*words_of(name), *options_of(files))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "-c names the groups billing, shipping, and this is about one: add --group NAME" in shown.stderr


def test_group_selects_one_of_the_files(files: list[Path]) -> None:
    shown = reconsume("explain", *options_of(files), "--group", "shipping", "-o", "jsonl")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout.splitlines()[1])["topic"] == "shipping-RETRY-10s"


def test_a_group_that_no_file_has_is_refused_with_a_suggestion(files: list[Path]) -> None:
    shown = reconsume("explain", *options_of(files), "--group", "shiping")
    assert shown.exit_code == 2
    assert "--group shiping: -c names billing, shipping; did you mean shipping?" in shown.stderr


@pytest.mark.parametrize("name", sorted(ONE_FILE))
def test_a_command_about_one_file_refuses_several(files: list[Path], name: str) -> None:
    shown = reconsume(*name.split(), *options_of(files))
    assert shown.exit_code == 2
    assert "-c names 2 files, and this takes one" in shown.stderr


def test_config_show_names_the_group_of_each_value(files: list[Path]) -> None:
    shown = reconsume("config", "show", *options_of(files), "-o", "jsonl")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    urls = {row["group"]: row["value"] for row in rows if row["key"] == "deliver.url"}
    assert urls == {group: f"http://127.0.0.1:8080/{group}" for group in GROUPS}


@pytest.mark.parametrize("name", ["run", "drain", "config check", "groups"])
def test_one_bad_file_and_nothing_starts(files: list[Path], name: str) -> None:
    files[1].write_text(f"{files[1].read_text()}start: never\n")
    shown = reconsume(*name.split(), *options_of(files))
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert f"{files[1]}: start = never" in shown.stderr


def test_check_names_the_memory_that_many_groups_need(files: list[Path]) -> None:
    more = []
    for number in range(6):
        more.append(files[0].parent / f"group{number}.yaml")
        more[-1].write_text(files[0].read_text().replace("billing", f"group{number}"))
    shown = reconsume("config", "check", *options_of([*files, *more]))
    assert shown.exit_code == 0
    assert "8 groups in one process need a memory limit of 512Mi" in shown.stderr


def option_pairs() -> Iterator[tuple[str, str]]:
    """Each command with each of its options that takes one value."""
    root: Any = typer.main.get_command(app)
    for name in NAMES:
        found: Any = root
        for word in name.split():
            found = found.commands[word]
        for option in found.params:
            if option.param_type_name == "option" and not (option.multiple or option.is_flag or option.count):
                yield name, option.opts[-1]


PAIRS = list(option_pairs())


def test_there_are_options_to_try() -> None:
    assert len(PAIRS) > 4 * len(NAMES) / 2
    assert NEEDED.keys() <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_takes_one_value_is_refused_a_second_time_by_every_command(name: str) -> None:
    for option in [option for command, option in PAIRS if command == name]:
        shown = reconsume(*name.split(), option, "first", f"{option}=second")
        assert (shown.exit_code, shown.stdout) == (2, ""), option
        assert f"{option} is given more than once: first and second; it takes one value" in shown.stderr
