"""Shared by the `retries` commands: filters, durations, and the progress line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from reconsume.sidecar.cli.terminal.arguments import ahead
from reconsume.sidecar.cli.terminal.output import each_second
from reconsume.topics.events import State

if TYPE_CHECKING:
    from reconsume.sidecar.view.query import Filters

ALL = "all"


def progress_line(what: str) -> Callable[[int, int], None]:
    """Return a function that prints each second, on a terminal, how many records were read."""
    return each_second(lambda read, total: f"{read} of {total} {what} read")


def filters_of(state: str, topic: str | None, level: str | None, reason: str | None, due: str | None) -> Filters:
    """Build the filters from the options. Raises BadParameter if the state is unknown."""
    from reconsume.sidecar.view.query import Filters

    if state.upper() not in (*State, ALL.upper()):
        raise typer.BadParameter(f"--state is {', '.join(State)} or {ALL}")
    wanted = None if state.lower() == ALL else State(state.upper())
    return Filters(wanted, level, topic, reason, None if due is None else ahead(due, "--due-before"))
