"""`retries watch`: a table that is redrawn each second, or a line for each change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reconsume.sidecar.cli.retries.rows import CUT, LIST, age_text, for_people, row_of, storm_text
from reconsume.sidecar.cli.terminal.output import Format, Output, cells_of
from reconsume.sidecar.cli.terminal.table import drawn, layout
from reconsume.sidecar.clock import wall
from reconsume.sidecar.printable import printable
from reconsume.sidecar.view.storm import Rule
from reconsume.topics.view_record import ViewRow, encode_row

if TYPE_CHECKING:
    from reconsume.sidecar.view.query import Filters
    from reconsume.sidecar.view.snapshot import ViewSnapshot

POLL = 0.2
DRAW_EVERY_S = 1.0
LEAST_ROWS = 5
FRAME = 9
"""Lines of the screen that are not rows of the table."""


def changes(look: ViewSnapshot, filters: Filters, end: float | None) -> Iterator[dict[str, Any]]:
    """Yield each new row of the view that matches the filters, until `end` (monotonic seconds)."""
    while end is None or time.monotonic() < end:
        for item in look.turn(POLL):
            if isinstance(item.value, ViewRow) and fits(item.value, filters):
                yield row_of(encode_row(item.value))


def fits(row: ViewRow, filters: Filters) -> bool:
    """Whether a row matches the filters."""
    wanted = ((filters.state, row.state), (filters.level, row.level), (filters.topic, row.topic))
    return all(wanted_value in (None, value) for wanted_value, value in (*wanted, (filters.reason, row.reason)))


def draw(look: ViewSnapshot, filters: Filters, rule: Rule, end: float | None, output: Output) -> None:
    """Draw the table each second, until `end` (monotonic seconds) or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=True if not output.color else None)
    with Live(console=console, auto_refresh=False) as live:
        drawn = -DRAW_EVERY_S
        while end is None or time.monotonic() < end:
            if time.monotonic() - drawn >= DRAW_EVERY_S:
                drawn = time.monotonic()
                height = max(LEAST_ROWS, console.height - FRAME)
                live.update(screen(look, filters, rule, height, console.width), refresh=True)
            look.turn(POLL)


def screen(look: ViewSnapshot, filters: Filters, rule: Rule, height: int, width: int | None) -> Any:
    """Return the picture: the counts of each state, whether there is a storm, and the records that are due first.

    `height`: rows of the table, `width`: its characters; None if it may go beyond the terminal's edge.
    """
    from rich.console import Group
    from rich.text import Text

    moment = wall()
    with look.questions() as ask:
        counts = ask.counts()
        storm = storm_text(ask.failures(moment - rule.window, moment), rule)
        page = ask.messages(filters, height)
    shown = [for_people(row_of(value), Format.TABLE) for value in page.values]
    cells = cells_of(LIST, shown, brief=width is not None)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no records"
    lines = (
        states,
        storm,
        age_text(look.source, look.as_of, moment),
        look.shortfall,
        "more are waiting" if page.cursor else "",
    )
    table = drawn(LIST, cells, layout(LIST, cells, width, CUT), CUT)
    return Group(*(Text(printable(line)) for line in lines if line), table)
