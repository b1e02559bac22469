"""Show progress on stderr: a table that stays in its position on a terminal, else one line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from reconsume.spark.job.progress import COLUMNS, line

Rows = Callable[[], list[tuple[str, ...]]]
DRAW_SECONDS = 1.0
"""Seconds between two drawings of the table."""
LINE_SECONDS = 10.0
"""Seconds between two lines."""


def say(text: str) -> None:
    """Write one line for the operator to stderr, with the time in UTC."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"{stamp} view: {text}\n")
    sys.stderr.flush()


@contextmanager
def shown(rows: Rows) -> Iterator[None]:
    """Show progress from a separate thread while the `with` block runs."""
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
    """Write a line every LINE_SECONDS while there is progress to show."""
    while not ended.wait(LINE_SECONDS):
        if lines := rows():
            say(line(lines))


def draw_table(rows: Rows, ended: threading.Event) -> None:
    """Draw the table every DRAW_SECONDS. Lines that other code writes to stderr appear above it."""
    with Live(table([]), console=Console(stderr=True), auto_refresh=False, redirect_stdout=False) as live:
        while not ended.wait(DRAW_SECONDS):
            live.update(table(rows()), refresh=True)


def table(rows: list[tuple[str, ...]]) -> Table:
    """Return the board's rows as a table."""
    drawn = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*row)
    return drawn
