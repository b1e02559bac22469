"""YAML of a few hundred bytes that stands for millions of values: refused by its line, in no time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconsume.sidecar.settings.yaml_text import MOST, read_yaml
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import GOOD, problems, write_good

LISTS = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 9))
MERGES = "".join(f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 9))
BOMBS = {
    "lists": ("x0: &x0 [1]\n" + LISTS, 4),
    "merges": ("x0: &x0 {k0: 1}\n" + MERGES, 4),
    "written out": ("x:\n" + "- 1\n" * 20_000, 10_000),
}
"""Each with the line from which on it is too many, the first line being 1; merges count a little more."""
SECONDS = 3.0
"""Of the processor; without a bound it is half a minute, or does not end."""


@contextmanager
def quickly() -> Iterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_by_its_line(tmp_path: Path, kind: str) -> None:
    text, line = BOMBS[kind]
    file = write_good(tmp_path, text)
    before = file.read_text().count("\n") - text.count("\n")
    with quickly():
        (problem,) = problems(file)
    assert f"stands for more than {MOST} values, aliases followed" in problem
    said = int(problem.partition("on line ")[2].partition(",")[0]) - before
    assert abs(said - line) <= 20, problem


@pytest.mark.parametrize("change", [f"retry.levels={LISTS}", "retry.levels=[" + "1," * 20_000 + "]"])
def test_neither_is_one_taken_by_set_or_from_the_environment(tmp_path: Path, change: str) -> None:
    change = change.replace("x1: &x1 [*x0", "x0: &x0 [1]\nx1: &x1 [*x0")
    name, _, value = change.partition("=")
    with quickly():
        for given in ({"sets": [change]}, {"environ": {"RECONSUME_" + name.upper().replace(".", "__"): value}}):
            assert any("aliases followed" in one for one in problems(write_good(tmp_path), **given))  # type: ignore[arg-type]


def test_aliases_that_stand_for_little_are_read() -> None:
    document = read_yaml("a: &a {b: [1, 2]}\nc: *a\nd: {<<: *a, e: 3}\n")
    assert document.faults == ()
    assert document.value == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": {"b": [1, 2], "e": 3}}


def test_an_alias_of_what_holds_it_is_told() -> None:
    assert "an alias refers to the value that holds it" in read_yaml("a: &a [*a]\n").faults[0]


def test_what_is_nested_without_end_is_refused_by_its_line(tmp_path: Path) -> None:
    text = "x:\n" + "- " * 500 + "1"
    assert "on line 2, column" in read_yaml(text).faults[0]
    assert "is nested deeper than 100 levels" in read_yaml(text).faults[0]
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text(f"kind: ConfigMap\n{text}")
    shown = reconsume("inject", "-f", manifest)
    assert (shown.exit_code, "line 3, column 199: is nested deeper than 100 levels" in shown.stderr) == (78, True)


@pytest.mark.parametrize(
    "number", ["1" + ":1" * 200_000, "0x" + "f" * 5_000, "0b" + "1" * 20_000, "1" * 5_000, "1." + "1" * 200]
)
def test_a_number_that_takes_a_minute_to_read_or_that_nobody_can_print_is_refused_by_its_line(
    tmp_path: Path, number: str
) -> None:
    """Given digits of base 60 without end, or a number of more digits than Python prints, then neither is read."""
    told = "has a number of more than 100 characters"
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text(f"kind: ConfigMap\nmetadata: {{name: a}}\nx: {number}\n")
    with quickly():
        (problem,) = problems(write_good(tmp_path, f"lock_timeout: {number}\n"))
        assert f"line {GOOD.count(chr(10)) + 1}, column 15: {told}" in problem
        (problem,) = problems(write_good(tmp_path), [f"deliver.concurrency={number}"])
        assert told in problem
        shown = reconsume("inject", "-f", manifest)
    assert (shown.exit_code, f"line 3, column 4: {told}" in shown.stderr) == (78, True)


def test_a_file_that_is_no_configuration_is_not_read_whole(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path, "# " + "x" * 2_000_000))
    assert "cannot be read: it has more than 1048576 bytes" in problem


@pytest.mark.parametrize("kind", ["lists", "merges"])
def test_a_manifest_with_a_bomb_is_refused_and_a_large_one_is_not(tmp_path: Path, kind: str) -> None:
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\n{BOMBS[kind][0]}")
    with quickly():
        shown = reconsume("inject", "-f", manifest)
    assert (shown.exit_code, "aliases followed" in shown.stderr) == (78, True)
    manifest.write_text("kind: ConfigMap\nmetadata: {name: a}\ndata:\n" + "".join(f"  k{n}: v\n" for n in range(8_000)))
    assert reconsume("inject", "-f", manifest).exit_code == 0
