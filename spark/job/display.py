"""Draws progress on stderr: a table that stays in place on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from spark.job.progress import COLUMNS, line

Rows = Callable[[], list[tuple[str, ...]]]
DRAW_SECONDS = 1.0
LINE_SECONDS = 10.0


def say(text: str) -> None:
    """One line for people, on stderr."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"{stamp} view: {text}\n")
    sys.stderr.flush()


@contextmanager
def shown(rows: Rows) -> Iterator[None]:
    """Show progress while the block runs, on a thread of its own."""
    ended = threading.Event()
    draw = draw_table if sys.stderr.isatty() else draw_lines
    thread = threading.Thread(target=draw, args=(rows, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def draw_lines(rows: Rows, ended: threading.Event) -> None:
    """A line now and then, while there is something to tell."""
    while not ended.wait(LINE_SECONDS):
        if told := rows():
            say(line(told))


def draw_table(rows: Rows, ended: threading.Event) -> None:
    """A table, drawn again each second; lines that others write to stderr go above it."""
    with Live(table([]), console=Console(stderr=True), auto_refresh=False, redirect_stdout=False) as live:
        while not ended.wait(DRAW_SECONDS):
            live.update(table(rows()), refresh=True)


def table(rows: list[tuple[str, ...]]) -> Table:
    """The board as a table."""
    drawn = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*row)
    return drawn
