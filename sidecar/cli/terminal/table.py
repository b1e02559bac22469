"""Lay out a table for people: an id is never cut or folded, and whatever else there is gives way.

In a narrow terminal the other columns are folded first, between words and down to a few characters; columns that the
caller names are cut instead. Then columns are left out: empty ones, then from the end. A table that is still too wide,
because of its ids, goes beyond the edge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

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

Cells = Sequence[Sequence[str]]
"""The rows of a table, each with a text for every column."""


class Layout(NamedTuple):
    """The columns that are shown, by their number, each with its width, and the names of those that are left out.

    Empty columns are left out without a word.
    """

    widths: dict[int, int]
    left_out: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Characters of a line."""
        return sum(self.widths.values()) + GAP * len(self.widths) - 1


class Demand(NamedTuple):
    """What one column takes: in full, and at least. `ids`: whether it holds any id."""

    full: int
    least: int
    ids: bool
    empty: bool


def layout(names: Sequence[str], cells: Cells, width: int | None, cut: Collection[str] = ()) -> Layout:
    """Return how a table is laid out in `width` characters; None: as wide as it is. `cut`: columns that are cut."""
    columns = [(name, [row[number] for row in cells]) for number, name in enumerate(names)]
    demands = {number: demand_of(name, texts, cut=name in cut) for number, (name, texts) in enumerate(columns)}
    if width is None or Layout({number: one.full for number, one in demands.items()}).width <= width:
        return Layout({number: one.full for number, one in demands.items()})
    shown, left_out = dict(demands), []
    for number in giving_way(demands):
        if Layout({kept: one.least for kept, one in shown.items()}).width <= width:
            break
        if not shown.pop(number).empty:
            left_out.append(number)
    room = width - Layout(dict.fromkeys(shown, 0)).width
    return Layout(shared(shown, room), tuple(names[number] for number in sorted(left_out)))


def demand_of(name: str, texts: Sequence[str], *, cut: bool = False) -> Demand:
    """Return what a column takes. Its name is never folded, nor its words, unless it is `cut`."""
    from rich.cells import cell_len

    full = max(cell_len(text) for text in (name, *texts))
    words = {} if cut else {word: cell_len(word) for text in texts for word in text.split()}
    ids = max((length for word, length in words.items() if is_id(word)), default=0)
    whole = max((length for length in words.values() if length <= LONGEST_WORD), default=0)
    return Demand(full, max(cell_len(name), min(full, LEAST), whole, ids), ids > 0, not any(texts))


def is_id(word: str) -> bool:
    """Whether a word holds a record's id or position."""
    return ID.search(word) is not None and TIME.match(word) is None


def giving_way(demands: dict[int, Demand]) -> list[int]:
    """Return the columns in the order in which they are left out. The first one with ids, else the first, stays."""
    stays = next((number for number, one in demands.items() if one.ids), 0)
    backwards = [number for number in reversed(demands) if number != stays]
    return sorted(backwards, key=lambda number: not demands[number].empty)


def shared(shown: dict[int, Demand], room: int) -> dict[int, int]:
    """Return the width of each column: at least what it needs, and an equal share of what is left."""
    widths = {number: one.least for number, one in shown.items()}
    rest = max(0, room - sum(widths.values()))
    wanting = sorted(shown, key=lambda number: shown[number].full - shown[number].least)
    for done, number in enumerate(wanting):
        more = min(shown[number].full - shown[number].least, rest // (len(wanting) - done))
        widths[number] += more
        rest -= more
    return widths


def drawn(names: Sequence[str], cells: Cells, placed: Layout, cut: Collection[str] = ()) -> Table:
    """Return the table as rich prints it; a text of the columns `cut` that is too long ends with an ellipsis."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    columns = [
        Column(name, width=width, overflow="ellipsis" if name in cut else "fold", no_wrap=name in cut)
        for name, width in ((names[number], width) for number, width in placed.widths.items())
    ]
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in cells:
        table.add_row(*(Text(row[number]) for number in placed.widths))
    return table
