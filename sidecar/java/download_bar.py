"""Draw the progress of a download on stderr. Only this module of `sidecar/java` uses a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sidecar.java.jars import Progress as Report


@contextmanager
def progress_bar(what: str = "Apache Kafka") -> Iterator[Report]:
    """Yield a callback for `fetch` that draws a bar on stderr. The bar is removed at the end of the block.

    Nothing is drawn if stderr is no terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
