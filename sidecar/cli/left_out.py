"""Stand-ins for commands whose part is not installed: the sidecar's image has no demo, embedded Kafka or Spark job."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from reconsume.sidecar.cli.terminal.exit_codes import exit_code
from reconsume.sidecar.errors import SetupError

DEV = find_spec("reconsume.sidecar.dev") is not None
"""Whether the tools for development are installed, which `demo` and `dev` need."""


def stand_in(app: typer.Typer, name: str) -> None:
    """Register a hidden command that says where to get the real one, whatever words follow it."""

    @app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse(_: typer.Context) -> None:
        raise typer.Exit(exit_code(lambda: not_here(name), debug=False))


def not_here(name: str) -> None:
    """Raise SetupError: the command is not installed here."""
    raise SetupError(f"`{name}` is not in the image: pip install . in a clone of Reconsume's repository has it")
