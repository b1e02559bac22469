"""Commands that our texts recommend: they ask the configuration that the command was called with."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reconsume import sidecar
from reconsume.sidecar.cli import app
from reconsume.sidecar.hints import hint, suggestion, use_file_of, use_given
from tests.support.sidecar.cli import reconsume

SOURCE = Path(sidecar.__path__[0])
STATIC = ("settings/", "deploy/", "java/", "dev/demo/", "release.py")
"""Texts that are written into files or pages, or made by no command: there is no `-c` to repeat."""
NOT_RECOMMENDED = (
    "not as `dlq export` writes it",
    "dismissed by `settle --commit`",
    "Ended by Ctrl-C",
    "Whoever read the data",
)
"""How texts begin that name a command and do not recommend to call it."""
HELP = frozenset({"Option", "Argument", "Typer"})
"""Calls whose texts are help."""


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))
        else:
            yield " ".join((*before, name))


NAMES = "|".join(map(re.escape, sorted(commands(typer.main.get_command(app)), reverse=True)))
NAMED = re.compile(rf"(?:\breconsume |`)(?:{NAMES})\b")


def texts_that_name_a_command(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each literal that names a command, outside docstrings, help and calls of `hint`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in HELP or name == "hint":
            left_out |= {id(one) for one in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in left_out:
            continue
        text = node.value
        if isinstance(text, str) and NAMED.search(text) and not text.startswith(NOT_RECOMMENDED):
            yield node.lineno, text


def test_every_text_that_recommends_a_command_gets_it_from_one_function() -> None:
    bypassing = [
        f"{file.relative_to(SOURCE)}:{line}: {text[:80]}"
        for file in sorted(SOURCE.rglob("*.py"))
        if not str(file.relative_to(SOURCE)).startswith(STATIC)
        for line, text in texts_that_name_a_command(file)
    ]
    assert bypassing == []


def test_the_search_for_such_texts_finds_one(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text('"""`dlq list`"""\nx = f"{1}: see `dlq list`"\ny = hint("dlq list")\nz = "run reconsume doctor"\n')
    assert sorted(line for line, _ in texts_that_name_a_command(file)) == [2, 4]


@pytest.mark.parametrize("where", ["before the command", "behind it"])
def test_an_error_recommends_the_command_for_the_file_that_was_given(tmp_path: Path, where: str) -> None:
    file = tmp_path / "my billing.yaml"
    file.write_text(
        '{"group": "b", "topics": ["o"], "deliver": {"url": "http://127.0.0.1:1/"},'
        ' "kafka": {"bootstrap.servers": "127.0.0.1:1"}}'
    )
    words = ["-c", file, "dlq", "list"] if where == "before the command" else ["dlq", "list", "-c", file]
    failed = reconsume(*words)
    assert failed.exit_code == 1
    assert f"`reconsume doctor -c {shlex.quote(str(file))}` looks for the cause" in failed.stderr


def test_an_error_recommends_the_command_with_the_settings_that_were_given(tmp_path: Path) -> None:
    file = tmp_path / "billing.yaml"
    file.write_text('{"group": "b", "topics": ["o"], "deliver": {"url": "http://127.0.0.1:1/"}}')
    failed = reconsume(
        "dlq", "list", "-c", file, "--set", "kafka.bootstrap.servers=127.0.0.1:1", "--set", "log.level=info"
    )
    assert failed.exit_code == 1
    again = f"reconsume doctor -c {file} --set kafka.bootstrap.servers=127.0.0.1:1 --set log.level=info"
    assert f"`{again}` looks for the cause" in failed.stderr


def test_a_hint_repeats_what_was_given_but_for_what_it_sets_itself() -> None:
    assert hint("topics apply") == "reconsume topics apply"
    use_given([Path("a b.yaml")], ["retry.levels=[1s]", "group=b", "retry.ladder=[1s, 2s]"])
    try:
        shown = hint("topics apply --set 'retry.levels=[1s, 3s]'")
        own = "reconsume topics apply --set 'retry.levels=[1s, 3s]' -c 'a b.yaml'"
        assert shown == f"{own} --set group=b --set 'retry.ladder=[1s, 2s]'"
        assert hint("run", Path("other.yaml")) == "reconsume run -c other.yaml"
    finally:
        use_given()
    assert hint("run", Path("a b.yaml")) == "reconsume run -c 'a b.yaml'"


def test_a_misspelt_name_is_answered_with_the_most_similar_one() -> None:
    assert suggestion("odrers", ["orders", "invoices"]) == "did you mean orders?"
    assert suggestion("payments", ["orders", "invoices"]) == ""


def test_of_several_configurations_a_hint_names_that_of_the_group_alone() -> None:
    files = {"billing": Path("billing.yaml"), "shipping": Path("shipping.yaml")}
    use_given(files.values(), ["log.level=debug"], "shipping")
    try:
        use_file_of(files)
        assert hint("topics apply") == "reconsume topics apply -c shipping.yaml --set log.level=debug"
        use_given(files.values())
        assert hint("topics apply") == "reconsume topics apply -c billing.yaml -c shipping.yaml"
    finally:
        use_given()
