"""The one place that prints: data to stdout as table, json, jsonl or tsv, messages to stderr.

A row is a mapping of plain values. json and jsonl print all of it; table and tsv print the requested columns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec

from sidecar.cli.terminal.table import drawn, layout
from sidecar.clock import utc
from sidecar.errors import SetupError
from sidecar.printable import printable, printable_json

P = ParamSpec("P")
Row = Mapping[str, object]
WIDEST = 10_000
"""Columns of a table that goes to a file: wide enough that nothing is wrapped or cut there."""


class Format(StrEnum):
    """The format in which data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Output:
    """The printer of a command's data; `asked` is None if the user did not choose a format."""

    asked: Format | None = None
    color: bool = True
    wide: bool = False
    """Whether tables are as wide as they need to be, whatever the terminal is."""

    @property
    def format(self) -> Format:
        """The chosen format, else table on a terminal and jsonl in a pipe."""
        return self.asked or (Format.TABLE if sys.stdout.isatty() else Format.JSONL)

    def rows(self, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Print the rows. In jsonl and tsv each row is printed as it comes, so the iterable may be endless."""
        match self.format:
            case Format.TABLE:
                self._table(columns, rows, sys.stdout)
            case Format.JSON:
                write(harmless(json.dumps(list(rows), indent=2, ensure_ascii=False)))
            case Format.JSONL:
                for row in rows:
                    write(harmless(json.dumps(row, ensure_ascii=False)))
            case Format.TSV:
                write("\t".join(columns))
                for row in rows:
                    write("\t".join(printable(escaped(cell(row.get(column)))) for column in columns))

    def talk_rows(self, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Print rows for a person on stderr, such as a plan before it is carried out."""
        self._table(columns, rows, sys.stderr)

    def rows_after(self, shown: Iterable[Row], columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Print the rows of what was done, whose plan was `shown` by `talk_rows`.

        Nobody reads the same table twice: on a terminal that shows both streams, equal rows are not printed again.
        """
        done = list(rows)
        on_one_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        if self.format is not Format.TABLE or not on_one_terminal or done != list(shown):
            self.rows(columns, done)

    def _table(self, columns: Sequence[str], rows: Iterable[Row], stream: object) -> None:
        cells = [[printable(cell(row.get(column))) for column in columns] for row in rows]
        if not cells:
            return
        from rich.console import Console  # rich is slow to import and costs memory: only when a table is drawn

        on_terminal = stream.isatty()  # type: ignore[attr-defined]

        class Plain(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would end the program here, with the exit code of a failure

        console = Plain(
            file=stream,  # type: ignore[arg-type]
            no_color=True if not self.color else None,
            width=None if on_terminal or "COLUMNS" in os.environ else WIDEST,
        )
        placed = layout(columns, cells, None if self.wide else console.width)
        console.width = max(console.width, placed.width)
        with taken():
            console.print(drawn(columns, cells, placed))
        if placed.left_out:
            talk(f"too narrow for the columns {', '.join(placed.left_out)}: --wide shows them")


def write(text: str) -> None:
    """Print one line of data. Raises SetupError if stdout cannot be written, BrokenPipeError if its reader went
    away."""
    with taken():
        sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Flush stdout. Raises the same errors as `write`."""
    with taken():
        sys.stdout.flush()


@contextmanager
def taken() -> Iterator[None]:
    """Turn a failed write to stdout (the disk is full, or stdout was closed) into SetupError. BrokenPipeError passes
    through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = f"stdout cannot be written: {error.strerror}"
        raise SetupError(f"{why}; what was written is not complete, so send it elsewhere") from error


def talk(text: str) -> None:
    """Print one line for people, on stderr. What is not printable in it may come from a record, and is escaped."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def each_second(sentence: Callable[P, str]) -> Callable[P, None]:
    """Return a function that prints the sentence, each second at most, if stderr is a terminal."""
    printed_at = time.monotonic()

    def show(*args: P.args, **named: P.kwargs) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= 1 and sys.stderr.isatty():
            printed_at = time.monotonic()
            talk(sentence(*args, **named))

    return show


def cell(value: object) -> str:
    """Return a value as one text: lists joined by commas, mappings as key=value."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ", ".join(cell(part) for part in value)
        case dict():
            return ", ".join(f"{key}={cell(part)}" for key, part in value.items())
        case _:
            return str(value)


def harmless(text: str) -> str:
    """Escape the characters of a JSON text that could move a terminal's cursor or change the direction of writing."""
    return "\n".join(map(printable_json, text.split("\n")))


def escaped(text: str) -> str:
    """Escape a text for one field of TSV."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def clock(at: int) -> str:
    """Format epoch ms for people, in UTC."""
    return utc(at, "%Y-%m-%dT%H:%M:%S+00:00")


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: `1 partition`, `2 partitions`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
