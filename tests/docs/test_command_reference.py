"""The reference page says what the commands say, and all of it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.support.sidecar.cli import reconsume

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "site" / "command_reference.py"))
page, ENVIRONMENT = SCRIPT["page"], SCRIPT["ENVIRONMENT"]
PAGE = ROOT / "docs" / "reference.md"
READ = re.compile(r"""environ(?:\.get\(|\[)"(\w+)"|"(\w+)" in os\.environ""")


def visible_commands(group: typer.Typer, above: str = "reconsume") -> Iterator[str]:
    for command in group.registered_commands:
        if not command.hidden:
            yield f"{above} {command.name}"
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from visible_commands(below.typer_instance, f"{above} {below.name}")


COMMANDS = list(visible_commands(app))


def section(command: str) -> str:
    found = re.search(rf"^###? {command}$(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{command} is not on the page"
    return found[1]


def test_the_page_in_the_documents_is_current() -> None:
    """Renew it by `make reference`."""
    assert PAGE.read_text(encoding="utf-8") == page(typer.main.get_command(app))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_help_is_on_the_page(command: str) -> None:
    told = reconsume(*command.split()[1:], "--help").stdout
    common = {"--config", "--set", "--output", "--wide", "--utc", "--no-color", "--debug", "--help", "--group"}
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", told, re.MULTILINE)) - common
    assert options == set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", section(command), re.MULTILINE)) - common


def test_a_change_of_an_option_is_seen_on_the_page() -> None:
    tree = typer.main.get_command(app)
    before = page(tree)
    (option,) = (param for param in tree.commands["demo"].params if param.name == "orders")  # type: ignore[attr-defined]
    option.default = 7
    assert page(tree) == before.replace(
        "| `--orders <int range>` | 400 | How many", "| `--orders <int range>` | 7 | How many"
    )
    assert page(tree) != before


def test_every_variable_that_is_read_is_told() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "sidecar").rglob("*.py")]
    read = {name for source in sources for found in READ.findall(source) for name in found if name}
    told = {name for names, _ in ENVIRONMENT for name in names.split(", ")}
    assert "JAVA_HOME" in read
    assert read <= told
