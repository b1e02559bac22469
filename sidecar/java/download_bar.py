"""Draws the progress of a download on stderr; the only place of `dev` that knows a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sidecar.java.jars import Progress as Report


@contextmanager
def progress_bar(what: str = "Apache Kafka") -> Iterator[Report]:
    """A callback for `fetch` that draws a bar on stderr while the block runs, and leaves nothing behind.

    Nothing is drawn where stderr is no terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
