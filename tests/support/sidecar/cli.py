"""The command line in this process, with a plain environment of fixed width."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner, Result

from reconsume.sidecar.cli import app, command_tree
from tests.support.kafka.group_topics import GroupTopics

PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def reconsume(*words: str | os.PathLike[str], stdin: str | None = None, **environ: str) -> Result:
    """Run `reconsume` with these words; `.exit_code`, `.stdout` and `.stderr` say what came of it.

    The runner would build the commands again for each call, which is most of what a short one costs.
    """
    with patch("typer.testing._get_command", lambda _app: command_tree()):
        return CliRunner().invoke(
            app, [str(word) for word in words], input=stdin, env=PLAIN | environ, prog_name="reconsume"
        )


def for_group(folder: Path, group: GroupTopics, *words: str, **more: object) -> Result:
    """Run it with the configuration of a group's sidecars, which stands in `folder`; `more`: other sections of it."""
    tree = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": [f"{delay}ms" for delay in group.delays], "ladder": ["1s", "2s"]},
    }
    file = folder / "reconsume.yaml"
    file.write_text(json.dumps(tree | more), encoding="utf-8")
    return reconsume(*words, "-c", file)
