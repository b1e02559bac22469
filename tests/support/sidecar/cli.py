"""The command line in this process, with a plain environment of fixed width."""

from __future__ import annotations

import os

from typer.testing import CliRunner, Result

from sidecar.cli import app

PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def reconsume(*words: str | os.PathLike[str], stdin: str | None = None, **environ: str) -> Result:
    """Run `reconsume` with these words; `.exit_code`, `.stdout` and `.stderr` say what came of it."""
    return CliRunner().invoke(
        app, [str(word) for word in words], input=stdin, env=PLAIN | environ, prog_name="reconsume"
    )
