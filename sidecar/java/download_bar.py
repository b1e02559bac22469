"""Say on stderr what a start does with jars: it checks them, downloads what is missing, and begins. Only this module of
`sidecar/java` uses a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from reconsume.sidecar.java.jars import Progress as Report


class WhileLoading(ProgressColumn):
    """A column that is empty unless something is downloaded."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> object:  # type: ignore[override]
        """Return what the column shows of a task."""
        return self._column.render(task) if task.total else Text("")


@contextmanager
def progress_bar(what: str = "Apache Kafka") -> Iterator[Report]:
    """Yield a callback for `fetch`. A line on stderr says that `what` is checked, downloaded (with a bar) and started.

    The line is removed at the end of the block. Nothing is drawn if stderr is no terminal.
    """
    console = Console(stderr=True)
    loading = map(WhileLoading, (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *loading)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"checking {what}", total=None)

        def show(done: int, total: int) -> None:
            if done < total:
                bar.update(task, description=f"downloading {what}", completed=done, total=total)
            else:
                bar.update(task, description=f"starting {what}", completed=0)
                bar.tasks[0].total = None  # `update` takes None for no change

        yield show
