"""Every command's help, word for word. Renew the files by UPDATE_GOLDEN=1 and read the difference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.support.sidecar.cli import reconsume

GOLDEN = Path(__file__).parent / "golden"


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


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "reconsume")
def test_help_is_as_it_was_agreed(words: tuple[str, ...]) -> None:
    shown = reconsume(*words, "--help")
    file = GOLDEN / f"{'-'.join(('reconsume', *words))}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(shown.stdout, encoding="utf-8")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    assert shown.stdout == file.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {"-".join(("reconsume", *words)) for words in COMMANDS}


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in GROUPS], ids=" ".join)
def test_every_command_shows_an_example(words: tuple[str, ...]) -> None:
    assert f"reconsume {' '.join(words)}" in reconsume(*words, "--help").stdout.split("Example", 1)[1]


def test_h_is_help_everywhere() -> None:
    assert reconsume("topics", "plan", "-h").stdout == reconsume("topics", "plan", "--help").stdout
