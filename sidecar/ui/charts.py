"""What is where on the charts: when records are due, sums by minute, and one record's journey.

Pure: values in, positions out; the pages call it on the event loop. `templates/charts.html` draws them, and escapes all
texts as every template does. It writes no `style` attribute, because the content security policy of the pages would
refuse it: the style comes from classes of `style.css`.

- *Due*: one row for each level, one bubble for records that are due together. The time axis is logarithmic: seconds
  near now, hours far away. Beyond `known` not every record was read, so that part is hatched.
- *Minutes*: one stacked bar a minute.
- *Journey*: deliveries on the left line, waits on the right one, time goes down. A longer wait is taller, but not in
  proportion. It is narrow by design, so that a telephone shows it without scaling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log1p, log10
from typing import NamedTuple

from reconsume.sidecar.ui.templating import length
from reconsume.topics.durations import render_duration
from reconsume.topics.events import Event, State

WIDTH, MARGIN = 720, 64
"""Units of the due chart: the whole width, and the space for names."""
COLUMNS = 30
"""Columns of bubbles, so that they never touch."""
SOON = 5_000
"""ms; the scale of the logarithmic time axis."""
TICKS = (0, 10_000, 60_000, 600_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000, 864_000_000)
TOP, HEAD = 44, 46
"""Units of a journey: where it begins, and the space for an event's own text."""


class Lane(NamedTuple):
    """A level, and the ms until each of its records is due; negative: overdue."""

    level: str
    waits: Sequence[int]


class Bubble(NamedTuple):
    """The records of one level that are due together, the first of them in `wait` ms; negative: all are overdue."""

    x: float
    records: int
    wait: int


class DueChart(NamedTuple):
    """When records are due. `ticks`: the positions of times on the axis, with their names. `unknown`: the position
    beyond which not every record is drawn, `known` ms from now; None: all are."""

    known: int | None
    lanes: Sequence[tuple[str, Sequence[Bubble]]]
    ticks: Sequence[tuple[float, str]]
    unknown: float | None


class Step(NamedTuple):
    """An event of a journey, from `top` down to `end`. `wait`: what follows it in words; empty if nothing waits."""

    event: Event
    before: Event | None
    top: int
    end: int
    is_last: bool
    wait: str


def due_chart(lanes: Sequence[Lane], known: int | None) -> DueChart:
    """Return where the records of each level are. `known`: ms from now up to which every record is there; None: all."""
    farthest = max((wait for lane in lanes for wait in lane.waits), default=0)
    horizon = max(farthest, 60_000) * 1.15
    ticks = [(across(tick, horizon), render_duration(tick) if tick else "now") for tick in TICKS if tick <= horizon]
    unknown = None if known is None else across(known, horizon)
    return DueChart(known, [(lane.level, bubbles(lane, horizon)) for lane in lanes], ticks, unknown)


def across(wait: int, horizon: float) -> float:
    """Return the position of a wait (ms) on the axis; an overdue record is at its beginning."""
    return MARGIN + 18 + (WIDTH - MARGIN - 40) * log1p(max(0, wait) / SOON) / log1p(horizon / SOON)


def bubbles(lane: Lane, horizon: float) -> list[Bubble]:
    """Return the records of a level, those that are due at about the same time together."""
    step = (WIDTH - MARGIN - 40) / COLUMNS
    columns: dict[int, list[int]] = {}
    for wait in lane.waits:
        column = -1 if wait < 0 else int((across(wait, horizon) - MARGIN - 18) / step)
        columns.setdefault(column, []).append(wait)
    return [Bubble(MARGIN + 18 + (column + 0.5) * step, len(waits), min(waits)) for column, waits in columns.items()]


def journey_steps(events: Sequence[Event], now: int) -> Iterator[Step]:
    """Yield the events of a record's journey with their positions at the time `now` (epoch ms); they are in order."""
    top, before = TOP, None
    for event, after in zip(events, [*events[1:], None], strict=False):
        tall, wait = 14, ""
        if event.state is State.WAITING_RETRY:
            waited = (now if after is None else after.at) - event.at
            tall += int(14 * log10(1 + max(0, waited) / 1_000))
            wait = wait_text(event, now, still=after is None)
        end = top + HEAD + tall
        yield Step(event, before, top, end, after is None, wait)
        top, before = end, event


def wait_text(event: Event, now: int, *, still: bool) -> str:
    """Return in words how long a record waits after an event; `still`: it has not ended. Times are epoch ms."""
    if not event.due:
        return "parked until a person settles it" if still else "parked"
    text = f"waits {length(max(0, event.due - event.at))}"
    if event.level and text != f"waits {event.level}":
        text += f" in level {event.level}"
    if not still:
        return text
    return f"{text} · due in {length(event.due - now)}" if event.due > now else f"{text} · due now"
