"""Every command has help with an example; its words are held by `docs/reference.md`, which is made from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.support.sidecar.cli import reconsume


def commands(group: typer.Typer, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of the group and of every command below it."""
    yield above
    for command in group.registered_commands:
        yield (*above, str(command.name))
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance, (*above, str(below.name)))


COMMANDS = list(commands(app))
GROUPS = {words[:-1] for words in COMMANDS if words}
TITLES = {
    page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    for page in (Path(__file__).parents[3] / "docs").glob("*.md")
}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "reconsume")
def test_help_is_printed_by_every_command_and_group(words: tuple[str, ...]) -> None:
    shown = reconsume(*words, "--help")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    assert shown.stdout.startswith(f"Usage: {' '.join(('reconsume', *words))} ")
    assert [line for line in shown.stdout.splitlines() if line.startswith("  ") and line.endswith("...")] == []
    page = shown.stdout.rpartition("Documentation: the page '")[2].partition("'")[0]
    assert words not in GROUPS or page in TITLES


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in GROUPS], ids=" ".join)
def test_every_command_shows_an_example(words: tuple[str, ...]) -> None:
    assert f"reconsume {' '.join(words)}" in reconsume(*words, "--help").stdout.split("Example", 1)[1]


def test_h_is_help_everywhere() -> None:
    assert reconsume("topics", "plan", "-h").stdout == reconsume("topics", "plan", "--help").stdout
