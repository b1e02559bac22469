"""The one place that prints: data to stdout as table, json, jsonl or tsv; talk to stderr.

A row is a mapping of plain values. json and jsonl print all of it, table and tsv the columns that are asked for.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sidecar.errors import SetupError

Row = Mapping[str, object]
UNSAFE = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and a terminal or an editor obeys."""
WIDEST = 10_000
"""Columns of a table that goes to a file: nothing is wrapped or cut there."""


class Format(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Output:
    """Prints a command's data; `asked` is None where the user left the format to us."""

    asked: Format | None = None
    color: bool = True

    @property
    def format(self) -> Format:
        """What was asked for, else table on a terminal and jsonl in a pipe."""
        return self.asked or (Format.TABLE if sys.stdout.isatty() else Format.JSONL)

    def rows(self, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Print the rows; an endless iterable is printed as it comes in jsonl and tsv."""
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
                    write("\t".join(visible(escaped(cell(row.get(column)))) for column in columns))

    def talk_rows(self, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Show rows to a person, on stderr: a plan before it is carried out."""
        self._table(columns, rows, sys.stderr)

    def _table(self, columns: Sequence[str], rows: Iterable[Row], stream: object) -> None:
        from rich.box import SIMPLE_HEAD  # rich is slow to import and costs memory: only when a table is drawn
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(visible(cell(row.get(column)))) for column in columns))
        if not table.rows:
            return
        on_terminal = stream.isatty()  # type: ignore[attr-defined]

        class Plain(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would end the program here, with the code of a failure

        console = Plain(
            file=stream,  # type: ignore[arg-type]
            no_color=True if not self.color else None,
            width=None if on_terminal or "COLUMNS" in os.environ else WIDEST,
        )
        with taken():
            console.print(table)


def write(text: str) -> None:
    """One line of data; SetupError when stdout does not take it, BrokenPipeError when its reader went away."""
    with taken():
        sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Send off what was written. Raises as `write` does."""
    with taken():
        sys.stdout.flush()


@contextmanager
def taken() -> Iterator[None]:
    """Say what is wrong with stdout, when it is: the disk is full, or it was closed."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = f"stdout cannot be written: {error.strerror}"
        raise SetupError(f"{why}; what was written is not complete, so send it elsewhere") from error


def talk(text: str) -> None:
    """One line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def cell(value: object) -> str:
    """A value as one text: lists joined by commas, mappings as key=value."""
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
    """A JSON text that a terminal takes for text: what could move its cursor or turn its direction is escaped."""
    return UNSAFE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def visible(text: str) -> str:
    """A text from anywhere, for a terminal: what is not printable is written as Python writes it."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def escaped(text: str) -> str:
    """A text for one field of TSV."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def clock(at: int) -> str:
    """Epoch ms for people, in UTC."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # a record may say anything
        return str(at)


def plural(count: int, noun: str) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
