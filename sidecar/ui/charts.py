"""Charts as SVG text: when records are due, and sums by minute. Pure: values in, markup out.

`Markup.format` escapes everything that comes from records. No `style` attribute is written, because the pages' content
security policy would refuse it: the style comes from classes of `style.css`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log1p, sqrt
from typing import NamedTuple

from markupsafe import Markup

from reconsume.sidecar.printable import printable
from reconsume.sidecar.ui.text import cut, iso, length, moment
from reconsume.topics.durations import render_duration

MARGIN, WIDTH, LANE = 64, 720, 30
"""Units of the due chart: the space for names, the whole width, the height of a level."""
COLUMNS, WIDEST = 30, 10
"""Columns of bubbles, and the radius of the largest bubble: they never touch."""
SOON = 5_000
"""ms; the scale of the logarithmic time axis: seconds near now, hours far away."""
TICKS = (0, 10_000, 60_000, 600_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000, 864_000_000)


WORDS = {"wait": "retries", "good": "done", "dead": "dead letters"}
"""What a kind of bar counts."""


class Lane(NamedTuple):
    """A level, and the ms until each of its records is due; negative: overdue."""

    level: str
    waits: Sequence[int]


class Minute(NamedTuple):
    """The counts of one minute; `begin` is its start in epoch ms."""

    begin: int
    waiting: int
    committed: int
    dead: int


def due_picture(lanes: Sequence[Lane], known: int | None) -> Markup:
    """Draw when records are due: one row per level, one bubble for records due together.

    `known`: ms from now up to which every record is drawn.
    """
    farthest = max((wait for lane in lanes for wait in lane.waits), default=0)
    horizon = max(farthest, 60_000) * 1.15
    height = 34 + LANE * max(1, len(lanes))
    shapes = [
        Markup('<svg class="due" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, height, "What is due when, by level"
        ),
        *_axis(horizon, height),
    ]
    for number, lane in enumerate(lanes):
        shapes += _lane(lane, number, horizon)
    if known is not None:
        x = across(known, horizon)
        shapes.append(
            Markup('<rect class="unknown" x="{:.1f}" y="8" width="{:.1f}" height="{}"/>').format(
                x, max(0, WIDTH - x), height - 34
            )
        )
    return Markup("").join([*shapes, Markup("</svg>")])


def across(wait: int, horizon: float) -> float:
    """Return the position of a wait (ms) on the axis; an overdue record lies at its beginning."""
    return MARGIN + 18 + (WIDTH - MARGIN - 40) * log1p(max(0, wait) / SOON) / log1p(horizon / SOON)


def _axis(horizon: float, height: int) -> Iterable[Markup]:
    for tick in TICKS:
        if tick > horizon:
            return
        name = "now" if tick == 0 else f"{render_duration(tick)}"
        yield Markup(
            '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="8" y2="{1}"/>'
            '<text class="tick" x="{0:.1f}" y="{2}" text-anchor="middle">{3}</text>'
        ).format(across(tick, horizon), height - 26, height - 8, name)


def _lane(lane: Lane, number: int, horizon: float) -> Iterable[Markup]:
    y = 8 + LANE * number + LANE / 2
    yield Markup(
        '<line class="lane" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="level" x="{}" y="{}" text-anchor="end">'
        "{}<title>{}</title></text>"
    ).format(MARGIN, WIDTH - 8, y, y, MARGIN - 8, y + 4, cut(lane.level, 8), printable(lane.level))
    columns: dict[int, list[int]] = {}
    step = (WIDTH - MARGIN - 40) / COLUMNS
    for wait in lane.waits:
        column = -1 if wait < 0 else int((across(wait, horizon) - MARGIN - 18) / step)
        columns.setdefault(column, []).append(wait)
    for column, waits in columns.items():
        x, count, late = MARGIN + 18 + (column + 0.5) * step, len(waits), column < 0
        title = f"{count} {printable(lane.level)}: {'overdue' if late else f'due in {length(min(waits))}'}"
        yield Markup('<circle class="bubble {}" cx="{:.1f}" cy="{}" r="{:.1f}"><title>{}</title></circle>').format(
            "overdue" if late else f"hue{number % 6}", x, y, min(WIDEST, 3 + sqrt(count)), title
        )
        if count > 20:
            yield Markup('<text class="inside" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x, y + 3.2, short(count)
            )


def minutes_picture(minutes: Sequence[Minute], first: int, count: int) -> Markup:
    """Draw the sums by minute: one bar a minute, for `count` minutes from `first` (epoch ms) on."""
    width, height, base = 720, 110, 92
    most = max((one.waiting + one.committed + one.dead for one in minutes), default=0) or 1
    step = width / count
    shapes = [
        Markup('<svg class="minutes" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            width, height, "Sums by minute"
        ),
        Markup('<line class="lane" x1="0" x2="{}" y1="{}" y2="{}"/>').format(width, base, base),
    ]
    for one in minutes:
        x, y = (one.begin - first) // 60_000 * step, float(base)
        for kind, number in (("wait", one.waiting), ("good", one.committed), ("dead", one.dead)):
            tall = (base - 8) * number / most
            y -= tall
            shapes.append(
                Markup(
                    '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title data-at="{}">'
                ).format(kind, x + 1, y, step - 2, tall, iso(one.begin))
                + Markup("{} {} from {} UTC</title></rect>").format(number, WORDS[kind], moment(one.begin))
            )
    for column, anchor in ((0, "start"), (count // 2, "middle"), (count, "end")):
        shapes.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                column * step, height - 4, anchor, "now" if column == count else f"{count - column} min ago"
            )
        )
    return Markup("").join([*shapes, Markup("</svg>")])


def bar(count: int, most: int) -> Markup:
    """Return a bar for one row of a table."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/><rect class="fill" width="{:.2f}" height="8"/></svg>'
    ).format(100 * count / (most or 1))


def short(count: int) -> str:
    """Format a count in few characters: 950, 1.2k, 34k, 1.2M."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.0f}{sign}" if count >= 10 * size else f"{count / size:.1f}{sign}"
    return str(count)
