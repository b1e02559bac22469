"""The runbook: a section an alert and no other, three parts each, and every command and address in it exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.support.kubernetes.promql import alerts

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "runbook.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = sorted({line for line in LINES if line.startswith("reconsume ")})
FIRST_COMMANDS = sorted(
    {
        command[1].replace(" --group {{ $labels.group }}", "")
        for rule in alerts().values()
        if (command := re.search(r"-- (reconsume .+)$", rule["annotations"]["description"])) is not None
    }
)
"""What alerts say to type first."""
CHANGES = {("dlq", "redrive"), ("dlq", "purge"), ("policy", "set"), ("topics", "apply"), ("acls", "apply")}


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    assert list(SECTIONS) == list(alerts())


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_what_it_means_how_to_look_and_what_to_do(name: str) -> None:
    parts = re.findall(r"^\*\*(\w+)\.\*\* \S", SECTIONS[name], re.MULTILINE)
    assert parts == ["Meaning", "Look", "Do"]
    assert "```sh\n" in SECTIONS[name]


@pytest.mark.parametrize("line", [*COMMANDS, *FIRST_COMMANDS])
def test_a_command_exists_with_its_options(line: str) -> None:
    """Given the command as it is written, then typer reads it to the end; nothing is run."""
    words = shlex.split(line.partition(" > ")[0])[1:]
    command = typer.main.get_command(app)
    path: list[str] = []
    while words and (below := getattr(command, "commands", {}).get(words[0])) is not None:
        path.append(words.pop(0))
        command = below
    assert path
    command.make_context(" ".join(path), list(words)).close()
    if tuple(path) in CHANGES:
        assert "--dry-run" in words or "--yes" in words


def test_what_is_mentioned_in_passing_exists_too() -> None:
    tree = typer.main.get_command(app)
    for mention in re.findall(r"`(?:reconsume )?((?:retries|policy|dlq|acls|topics|config|view) \w+)[^`]*`", PAGE):
        group, name = mention.split()
        assert name in tree.commands[group].commands, mention  # type: ignore[attr-defined]


def test_only_addresses_that_the_sidecar_serves_are_called() -> None:
    called = {line.rpartition("/")[2] for line in LINES if line.startswith("curl ")}
    assert called == {"metrics", "status"}


def test_links_lead_somewhere() -> None:
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    for target, anchor in re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", PAGE):
        assert (DOCS / target).exists()
        assert not anchor or anchor in headings


def test_every_metric_and_event_that_is_named_exists() -> None:
    metrics = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(reconsume_\w+)`", PAGE):
        assert f"`{name}`" in metrics
    events = set(re.findall(r"^\| `([\w-]+)` \|", (DOCS / "logs.md").read_text(encoding="utf-8"), re.MULTILINE))
    for sentence in re.findall(r"events? ((?:`[\w-]+`(?:,| and)? ?)+)", PAGE):
        assert set(re.findall(r"`([\w-]+)`", sentence)) <= events, sentence
