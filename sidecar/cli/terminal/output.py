"""The one module that prints: data to stdout as table, json, jsonl or tsv, messages to stderr.

A row is a mapping of plain values. json and jsonl print all of it; table and tsv print the requested columns.

In a table an id is never cut or folded, and whatever else there is gives way. rich draws it; the widths are ours,
because rich shrinks every column alike. In a narrow terminal the other columns are folded first, between words and down
to a few characters; columns that the caller names are cut instead. Then columns are left out: empty ones, then from the
end. A table that is still too wide, because of its ids, goes beyond the edge.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, ParamSpec, TextIO

from reconsume.sidecar.clock import utc
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.operation import EpochMs
from reconsume.sidecar.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.table import Table

P = ParamSpec("P")
Row = Mapping[str, object]
WIDEST = 10_000
"""Columns of a table that goes to a file: wide enough that nothing is wrapped or cut there."""


ID = re.compile(r"[A-Za-z0-9._-]:[0-9]+:[0-9]+")
"""What a record's id or its position has in it; people copy the whole word into another command."""
TIME = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d(:\d\d)?\b")
"""What a time begins with, which is no id."""
LEAST = 12
"""Characters that a folded or cut column keeps. No time of a day, no state and no count has more."""
LONGEST_WORD = 24
"""Characters of a word that is never folded. A longer one, like a hash, may be."""
GAP = 3
"""Characters between two columns."""

Widths = Mapping[int, int]
"""The width of each column that is shown, by the number of the column."""


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

    def _table(self, columns: Sequence[str], rows: Iterable[Row], stream: TextIO, cut: Collection[str] = ()) -> None:
        on_terminal = stream.isatty() or "COLUMNS" in os.environ
        rows, zone = list(rows), UTC if self.utc else datetime.now().astimezone().tzinfo or UTC
        if not rows:
            return
        # A file may be read on another day.
        cells = cells_of(columns, rows, brief=on_terminal and not self.wide, zone=zone)
        titles = titles_of(columns, rows, zone)
        names, cut = list(titles.values()), [titles[name] for name in cut if name in titles]
        from rich.console import Console  # rich is slow to import and costs memory: only when a table is drawn

        console = Console(file=stream, no_color=None if self.color else True, width=None if on_terminal else WIDEST)
        widths = column_widths(names, cells, sys.maxsize if self.wide else console.width, cut)
        console.width = max(console.width, table_width(widths))
        with console.capture() as table:  # rich would end the program if the reader went away
            console.print(drawn(names, cells, widths, cut))
        with taken():
            stream.write(table.get())
        if left_out := [
            name for number, name in enumerate(names) if number not in widths and any(row[number] for row in cells)
        ]:
            talk(f"too narrow for the columns {', '.join(left_out)}: --wide shows them")


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
    timed = {column for column in columns if any(isinstance(row.get(column), Moment | EpochMs) for row in rows)}
    return {column: f"{column} ({name})" if column in timed else column for column in columns}


def cells_of(columns: Sequence[str], rows: Iterable[Row], *, brief: bool, zone: tzinfo = UTC) -> list[list[str]]:
    """Return the texts of a table, printable. `brief`: times are shortened. `zone`: of these times."""
    return [[printable(timed_or_cell(row.get(column), zone, brief=brief)) for column in columns] for row in rows]


def timed_or_cell(value: object, zone: tzinfo, *, brief: bool) -> str:
    """Return a value as one text, a time in this zone. `brief`: the least that tells it apart, in at most 11
    characters."""
    if isinstance(value, EpochMs):
        value = clock(value)
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
    text = utc(at)
    return Moment(text) if text.endswith("Z") else text


def table_width(widths: Widths) -> int:
    """Return the characters of a line."""
    return sum(widths.values()) + GAP * len(widths) - 1


def column_widths(
    names: Sequence[str], cells: Sequence[Sequence[str]], width: int, cut: Collection[str] = ()
) -> dict[int, int]:
    """Lay out a table in `width` characters; a column that is left out is not in the result.

    The first column with ids stays, or the first one if none has any. `cut`: the names of columns that are cut.
    """
    from rich.cells import cell_len  # rich is slow to import

    columns = list(zip(*cells, strict=True))
    full = {number: max(map(cell_len, (name, *columns[number]))) for number, name in enumerate(names)}
    if table_width(full) <= width:
        return full
    widths = {}
    for number, name in enumerate(names):
        words = {word for text in columns[number] for word in text.split() if name not in cut}
        whole = [cell_len(word) for word in words if is_id(word) or cell_len(word) <= LONGEST_WORD]
        widths[number] = max(cell_len(name), min(full[number], LEAST), *whole)
    stays = next((number for number, texts in enumerate(columns) if is_id(" ".join(texts))), 0)
    for number in sorted(full, key=lambda number: (any(columns[number]), -number)):
        if number != stays and table_width(widths) > width:
            del widths[number]
    room = max(0, width - table_width(widths))
    wanting = sorted(widths, key=lambda number: full[number] - widths[number])
    for done, number in enumerate(wanting):
        more = min(full[number] - widths[number], room // (len(wanting) - done))
        widths[number] += more
        room -= more
    return widths


def is_id(text: str) -> bool:
    """Whether one of the words of a text is a record's id or position."""
    return any(ID.search(word) and not TIME.match(word) for word in text.split())


def drawn(names: Sequence[str], cells: Sequence[Sequence[str]], widths: Widths, cut: Collection[str] = ()) -> Table:
    """Return the table as rich prints it; a text of the columns `cut` that is too long ends with an ellipsis."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, width in widths.items():
        is_cut = names[number] in cut
        table.add_column(names[number], width=width, overflow="ellipsis" if is_cut else "fold", no_wrap=is_cut)
    for row in cells:
        table.add_row(*(Text(row[number]) for number in widths))
    return table
