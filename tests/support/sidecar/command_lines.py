"""Whether a command line is one that the program takes, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reconsume.sidecar.cli import command_tree


def parsed(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command's name, such as `topics apply`, and its options. Raises typer's errors for wrong usage."""
    command = command_tree()
    context: Any = command.make_context("reconsume", list(words))
    names: list[str] = []
    while hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        names.append(str(name))
        context = command.make_context(name, list(rest), parent=context)
    return " ".join(names), dict(context.params)
