"""The common options: before, between and after the words of a command, and what they do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_good(tmp_path)


def values(stdout: str) -> dict[str, object]:
    return {row["key"]: row["value"] for row in map(json.loads, stdout.splitlines())}


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "FILE", "config", "show"],
        ["config", "-c", "FILE", "show"],
        ["config", "show", "-c", "FILE"],
        ["config", "show", "--config", "FILE"],
    ],
)
def test_an_option_stands_before_between_or_after_the_words(file: Path, words: list[str]) -> None:
    shown = reconsume(*[str(file) if word == "FILE" else word for word in words])
    assert shown.exit_code == 0
    assert values(shown.stdout)["group"] == "billing"


def test_an_option_before_and_behind_the_name_of_the_command_is_given_twice(file: Path) -> None:
    shown = reconsume("-o", "json", "config", "show", "-c", file, "-o", "tsv")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--output is given more than once: json and tsv; it takes one value" in shown.stderr


def test_a_second_group_before_the_name_of_the_command_is_named_with_its_option(file: Path) -> None:
    shown = reconsume("--group", "a", "config", "show", "-c", file, "--group", "b")
    assert shown.exit_code == 2
    assert "--group is given more than once: a and b; it takes one value" in shown.stderr


def test_every_set_counts_and_the_later_wins(file: Path) -> None:
    sets = ["--set", "log.level=debug", "--set", "start=latest"]
    shown = reconsume(*sets, "config", "--set", "log.level=error", "show", "-c", file, "--set", "retry.max_deaths=9")
    found = values(shown.stdout)
    assert (found["log.level"], found["start"], found["retry.max_deaths"]) == ("error", "latest", 9)


def test_an_unknown_format_is_wrong_usage(file: Path) -> None:
    shown = reconsume("config", "show", "-c", file, "-o", "xml")
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "'xml' is not one of" in shown.stderr


@pytest.mark.parametrize(
    "words", [["-o", "xml", "holds"], ["doctor", "--role", "x"], ["dlq", "list", "--limit", "0.5"]]
)
def test_a_wrong_value_is_named_without_the_words_of_a_library(words: list[str]) -> None:
    shown = reconsume(*words)
    assert shown.exit_code == 2
    assert "Value error" not in shown.stderr
    assert "Input should" not in shown.stderr


@pytest.mark.parametrize("words", [["nope"], ["topics", "nope"], ["config", "show", "--nope"], ["run", "extra"]])
def test_unknown_words_are_wrong_usage(words: list[str]) -> None:
    shown = reconsume(*words)
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "Error" in shown.stderr


def test_no_traceback_without_debug_and_one_with_it(tmp_path: Path) -> None:
    words = ["config", "show", "-c", str(tmp_path / "nowhere.yaml")]
    plain, debug = reconsume(*words), reconsume(*words, "--debug")
    assert plain.exit_code == debug.exit_code == 78
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


def test_the_version_is_data() -> None:
    shown = reconsume("--version")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert re.fullmatch(r"reconsume \d+\.\d+\.\d+ \(commit \S+, Python \S+, librdkafka \S+\)\n", shown.stdout)


def test_who_looks_for_the_version_among_the_commands_is_told_where_it_is() -> None:
    shown = reconsume("version")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "reconsume --version prints it" in shown.stderr


@pytest.mark.parametrize(("word", "suggested"), [("--yes", []), ("--reasn", ["--reason"]), ("--keyy", ["--key"])])
def test_only_similar_options_are_suggested(word: str, suggested: list[str]) -> None:
    shown = reconsume("retries", "list", word)
    assert shown.exit_code == 2
    assert f"No such option: {word}" in shown.stderr
    assert ("Possible options" in shown.stderr) == bool(suggested)
    assert all(one in shown.stderr for one in suggested)
