"""What `retries` commands are asked for: filters, moments, durations; and what is told while they read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from sidecar.cli.terminal.arguments import ahead
from sidecar.cli.terminal.output import talk
from sidecar.settings import Settings
from sidecar.view.storm import Rule
from topics.durations import parse_duration
from topics.events import State

if TYPE_CHECKING:
    from sidecar.view.query import Filters

ALL = "all"


def progress_line(what: str) -> Callable[[int, int], None]:
    """Tells on a terminal, each second, how far the reading is."""
    told = time.monotonic()

    def tell(read: int, total: int) -> None:
        nonlocal told
        if sys.stderr.isatty() and time.monotonic() - told >= 1:
            told = time.monotonic()
            talk(f"{read} of {total} {what} read")

    return tell


def filters_of(state: str, topic: str | None, level: str | None, reason: str | None, due: str | None) -> Filters:
    """What is asked for; wrong usage for a state that is none."""
    from sidecar.view.query import Filters

    if state.upper() not in (*State, ALL.upper()):
        raise typer.BadParameter(f"--state is {', '.join(State)} or {ALL}")
    wanted = None if state.lower() == ALL else State(state.upper())
    return Filters(wanted, level, topic, reason, None if due is None else ahead(due, "--due-before"))


def duration(text: str, option: str) -> int:
    """A duration in ms; wrong usage for what is none."""
    try:
        return parse_duration(text)
    except ValueError as fault:
        raise typer.BadParameter(f"{option}: {fault}") from fault


def rule_of(settings: Settings) -> Rule:
    """What a storm is."""
    return Rule(settings.view.storm_window, settings.view.storm_share, settings.view.storm_min)
