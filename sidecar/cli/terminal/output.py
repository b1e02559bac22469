"""The one module that prints: data to stdout as table, json, jsonl or tsv, messages to stderr.

A row is a mapping of plain values. json and jsonl print all of it; table and tsv print the requested columns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import ParamSpec

from reconsume.sidecar.cli.terminal.table import drawn, layout
from reconsume.sidecar.clock import utc
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.printable import printable, printable_json

P = ParamSpec("P")
Row = Mapping[str, object]
WIDEST = 10_000
"""Columns of a table that goes to a file: wide enough that nothing is wrapped or cut there."""


class Moment(str):
    """A time as `clock` writes it; a table on a terminal shortens it. No text of a record is one, however it looks."""

    __slots__ = ()


class Format(StrEnum):
    """The format in which data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Output:
    """The printer of a command's data; `chosen` is None if the user did not choose a format."""

    chosen: Format | None = None
    color: bool = True
    wide: bool = False
    """Whether tables are as wide as they need to be, whatever the terminal is."""
    utc: bool = False
    """Whether tables have times in UTC, and not in the zone of their reader."""

    @property
    def format(self) -> Format:
        """The chosen format, else table on a terminal and jsonl in a pipe."""
        return self.chosen or (Format.TABLE if sys.stdout.isatty() else Format.JSONL)

    @property
    def is_read_with_plan(self) -> bool:
        """Whether a person sees tables of data and of plans on one terminal."""
        return self.format is Format.TABLE and sys.stdout.isatty() and sys.stderr.isatty()

    def rows(self, columns: Sequence[str], rows: Iterable[Row], cut: Collection[str] = ()) -> None:
        """Print the rows. In jsonl and tsv each row is printed as it comes, so the iterable may be endless.

        `cut`: columns of long texts that a narrow table cuts with an ellipsis, where it folds all others.
        """
        match self.format:
            case Format.TABLE:
                self._table(columns, rows, sys.stdout, cut)
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

        Nobody reads the same row twice: on a terminal that shows both streams, equal rows are not printed again.
        """
        known = set(map(str, shown)) if self.is_read_with_plan else ()
        self.rows(columns, [row for row in rows if str(row) not in known])

    def _table(self, columns: Sequence[str], rows: Iterable[Row], stream: object, cut: Collection[str] = ()) -> None:
        on_terminal = stream.isatty() or "COLUMNS" in os.environ  # type: ignore[attr-defined]
        rows, zone = list(rows), UTC if self.utc else datetime.now().astimezone().tzinfo or UTC
        # A file may be read on another day.
        cells = cells_of(columns, rows, brief=on_terminal and not self.wide, zone=zone)
        if not cells:
            return
        titles = titles_of(columns, rows, zone)
        columns, cut = list(titles.values()), [titles[name] for name in cut if name in titles]
        from rich.console import Console  # rich is slow to import and costs memory: only when a table is drawn

        class Plain(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would end the program here, with the exit code of a failure

        console = Plain(
            file=stream,  # type: ignore[arg-type]
            no_color=True if not self.color else None,
            width=None if on_terminal else WIDEST,
        )
        placed = layout(columns, cells, None if self.wide else console.width, cut)
        console.width = max(console.width, placed.width)
        with taken():
            console.print(drawn(columns, cells, placed, cut))
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
            return ", ".join(cell(item) for item in value)
        case dict():
            return ", ".join(f"{key}={cell(item)}" for key, item in value.items())
        case _:
            return str(value)


def titles_of(columns: Sequence[str], rows: Sequence[Row], zone: tzinfo) -> dict[str, str]:
    """Return the title of each column: of one with times it names their zone."""
    name = zone.tzname(None) or "UTC"
    timed = {column for column in columns if any(isinstance(row.get(column), Moment) for row in rows)}
    return {column: f"{column} ({name})" if column in timed else column for column in columns}


def cells_of(columns: Sequence[str], rows: Iterable[Row], *, brief: bool, zone: tzinfo = UTC) -> list[list[str]]:
    """Return the texts of a table, printable. `brief`: times are shortened. `zone`: of these times."""
    return [[printable(timed_or_cell(row.get(column), zone, brief=brief)) for column in columns] for row in rows]


def timed_or_cell(value: object, zone: tzinfo, *, brief: bool) -> str:
    """Return a value as one text, a time in this zone. `brief`: the least that tells it apart, in at most 11
    characters."""
    if not isinstance(value, Moment):
        return cell(value)
    there = datetime.fromisoformat(value).astimezone(zone)
    if not brief:
        return there.isoformat()
    now = datetime.now(zone)
    if there.date() == now.date():
        return f"{there:%H:%M:%S}"
    return f"{there:%m-%d %H:%M}" if there.year == now.year else f"{there:%Y-%m-%d}"


def harmless(text: str) -> str:
    """Escape the characters of a JSON text that could move a terminal's cursor or change the direction of writing."""
    return "\n".join(map(printable_json, text.split("\n")))


def escaped(text: str) -> str:
    """Escape a text for one field of TSV."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def clock(at: int) -> str:
    """Format epoch ms in UTC, as ISO 8601 with `Z`; a Moment, unless it is a number that no calendar has."""
    text = utc(at, "%Y-%m-%dT%H:%M:%SZ")
    return Moment(text) if text.endswith("Z") else text
