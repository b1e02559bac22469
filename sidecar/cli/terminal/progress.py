"""A progress bar on stderr, for what is read from Kafka before anything can be printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

AFTER = 1.0
"""Seconds after which the bar is drawn: what is shorter needs none."""


class ShowProgress(Protocol):
    """Called with the number of records read, their total (0: not known), and what they are if that has changed."""

    def __call__(self, done: int, total: int, what: str | None = None) -> None: ...


@contextmanager
def progress_bar(what: str) -> Iterator[ShowProgress]:
    """Yield a function that shows how many records were read. `what`: the records, in words.

    The bar is drawn after a second and removed at the end of the block. Nothing is drawn if stderr is no terminal.
    """
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, begun = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int, what: str | None = None) -> None:
        bar.update(task, description=what, completed=done, total=total or None)
        if not bar.live.is_started and time.monotonic() - begun >= AFTER:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()
