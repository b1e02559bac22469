"""Ask the user for values and before something is changed, and stop cleanly between two transactions."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from reconsume.sidecar.cli.terminal.exit_codes import FAILED
from reconsume.sidecar.cli.terminal.output import talk

# Every command that changes something takes --yes, so that a script need not know which of them ask.
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt. Required when there is no terminal.")]
NeverAsks = Annotated[bool, typer.Option("--yes", help="Accepted as elsewhere; this command never asks.")]


def ask(question: str, agreed: str | None = None) -> None:
    """Ask the user to agree: by yes, or by typing `agreed`. Raises BadParameter if there is no terminal, Exit if the
    answer is no."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask on: give --yes, or --dry-run to change nothing")
    # Not typer.confirm: it turns Ctrl-C into the exit code of a failure.
    sys.stderr.write(f"{question}: " if agreed else f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if answer != agreed if agreed else answer.lower() not in ("y", "yes"):
        talk("nothing was changed")
        raise typer.Exit(FAILED)


def question(text: str, likely: str | None = None) -> str:
    """Ask for a value on the terminal. An empty line is the `likely` one, or empty. Raises Exit at the end of input."""
    sys.stderr.write(f"{text}{f' [{likely}]' if likely else ''}: ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        talk("")
        talk("nothing was written")
        raise typer.Exit(FAILED)
    return line.strip() or likely or ""


IN_WORK = "stopping after the transaction in work"
FOLLOWED = "stopped waiting; what was written is carried out all the same"


@contextmanager
def stop_signal(text: str = IN_WORK) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, so that the work under way is completed. The second
    interrupts it at once. `text`: what the user is told at the first."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        talk(text)

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
