"""Every command that changes something takes --yes, so that a script need not know which of them ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reconsume.sidecar.cli import app
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter

READS = {
    *("acls export", "acls plan", "audit", "config check", "config schema", "config show", "dlq export", "dlq list"),
    *(
        "dlq show",
        "dev deliver",
        "dev expect",
        "doctor",
        "explain",
        "instances",
        "find",
        "groups",
        "holds",
        "policy show",
        "retries list",
        "retries show",
        "retries stats",
    ),
    *("topics check", "topics export", "topics plan", "view sql"),
}
"""Commands that change nothing."""
LASTING = {"demo", "dev broker", "dev up", "run", "ui", "view run"}
"""Commands that run something of their own until they are stopped."""


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))
        else:
            yield " ".join((*before, name)), one


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - READS - LASTING))
def test_a_command_that_changes_something_takes_yes(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--yes" in options


def test_the_lists_of_other_commands_name_no_command_that_is_gone() -> None:
    assert COMMANDS.keys() >= READS | LASTING
    assert not READS & LASTING


def test_a_purge_needs_the_groups_name_even_with_yes(kafka: Broker, tmp_path: Path) -> None:
    group = create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=1)
    produce(group.bootstrap, group.dlq, [dead_letter(group, 1, at=1_763_690_000_000)])
    file = tmp_path / "reconsume.yaml"
    servers = {"bootstrap.servers": kafka.bootstrap}
    tree = {"group": group.group, "topics": [group.main], "kafka": servers, "deliver": {"url": "http://127.0.0.1:1/"}}
    file.write_text(json.dumps(tree), encoding="utf-8")
    refused = reconsume("dlq", "purge", "--until", "1d", "--yes", "-c", file)
    assert refused.exit_code == 2
    assert f"--yes needs --confirm {group.group}" in refused.stderr
    assert len(dump(group.bootstrap, group.dlq)) == 1
    done = reconsume("dlq", "purge", "--until", "1d", "--yes", "--confirm", group.group, "-c", file)
    assert done.exit_code == 0, done.output
    assert dump(group.bootstrap, group.dlq) == []


def test_an_option_that_resembles_none_gets_no_suggestion_and_one_that_does_gets_that() -> None:
    assert "Possible options" not in reconsume("audit", "--yes").output
    assert "--since" in reconsume("dlq", "list", "--sinse", "1h").output
