"""Lay out a table for people: an id is never cut or folded, and whatever else there is gives way.

rich draws the table; the widths are ours, because rich shrinks every column alike. In a narrow terminal the other
columns are folded first, between words and down to a few characters; columns that the caller names are cut instead.
Then columns are left out: empty ones, then from the end. A table that is still too wide, because of its ids, goes
beyond the edge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

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
