"""Draw the demo: a live picture on a terminal, a plain line every two seconds elsewhere, and a table at the end.

Progress goes to stderr, the result to stdout. Nothing is computed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from reconsume.sidecar.dev.demo.lateness import Spread
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.tracking import Counts, Step, Track
from reconsume.sidecar.dev.demo.verify import Report
from reconsume.topics.events import State

REDRAW_SECONDS = 0.2
LINE_SECONDS = 2.0
BAR = 30
MANY_LEVELS = 6
"""With more levels than this, empty levels are left out: the picture must fit a small terminal."""
MORE_LATE = 0.5
"""Seconds; a retry that comes later than this after its due time is marked, because the service was down."""


class Scene(NamedTuple):
    """One moment: seconds since the first order came, the time of that (epoch ms), and the state of the orders."""

    seconds: float
    began: float
    orders: int
    counts: Counts
    levels: Sequence[str]
    journeys: Sequence[Track]
    is_down: bool
    view: Mapping[State, int] | None = None
    """Records by state in Spark's view, if the job runs."""


class Screen:
    """A context manager: the live picture is shown while it is open."""

    def __init__(self, color: bool) -> None:
        no_color = None if color else True  # None: rich reads NO_COLOR itself
        self.talk = Console(stderr=True, no_color=no_color, highlight=False)
        self.data = Console(no_color=no_color, highlight=False)
        self._live = Live(console=self.talk, auto_refresh=False) if self.talk.is_terminal else None
        self._stack = ExitStack()
        self._next = 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._stack.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Print one sentence about the progress, to stderr."""
        plainly(self.talk, text)

    def tell(self, text: str) -> None:
        """Print one sentence of the result, to stdout."""
        plainly(self.data, text)

    def show(self, scene: Scene, *, last: bool = False) -> None:
        """Draw the scene, if a new picture is due or this is the last one."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        if self._live is not None:
            self._next = now + REDRAW_SECONDS
            self._live.update(picture(scene), refresh=True)
            return
        self._next = now + LINE_SECONDS
        self.say(line(scene))
        for track in scene.journeys if last else ():
            self.say(f"{track.case:8} {track.id:13} {way(track, scene.began).plain}")

    def result(self, report: Report, seconds: float, mode: Mode) -> None:
        """Print the table of the result."""
        self.data.print(table(report, seconds, mode))


def plainly(console: Console, text: str) -> None:
    """Print the text without markup: wrapped between words on a terminal, on one line elsewhere."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


def standing(scene: Scene) -> Iterable[tuple[str, int, str]]:
    """Yield the name, the count and the colour of each state."""
    counts = scene.counts
    yield "ready", counts.ready, "cyan"
    yield "in flight", counts.in_flight, "blue"
    for level in scene.levels:
        count = counts.waiting.get(level, 0)
        if count or len(scene.levels) <= MANY_LEVELS:
            yield f"waiting {level}", count, "yellow"
    yield "committed", counts.committed, "green"
    yield "dead letter", counts.dead, "red"


def line(scene: Scene) -> str:
    """Return the scene as one plain line."""
    states = "  ".join(f"{name} {count}" for name, count, _ in standing(scene))
    down = "  (the service is down)" if scene.is_down else ""
    text_of_view = "" if scene.view is None else f"  | the view: {in_view(scene.view)}"
    return f"{scene.seconds:5.1f} s  {states}{down}{text_of_view}"


def in_view(view: Mapping[State, int]) -> str:
    """Return the counts of the view's states that have records."""
    return ", ".join(f"{view[state]} {state}" for state in State if view.get(state)) or "empty"


def picture(scene: Scene) -> Group:
    """Return the scene as a picture."""
    service = Text("down", "bold red") if scene.is_down else Text("up", "green")
    head = Text.assemble(f"{scene.seconds:6.1f} s   service ", service, f"   {scene.orders} orders")
    bars = Table(box=None, show_header=False, pad_edge=False)
    for name, count, color in standing(scene):
        width = -(-count * BAR // max(scene.orders, 1))
        bars.add_row(name, Text(str(count), justify="right"), Text("█" * width, color))
    view = [] if scene.view is None else [Text.assemble(("Spark's view ", "dim"), in_view(scene.view)), Text()]
    return Group(head, Text(), bars, Text(), *view, journeys(scene))


def journeys(scene: Scene) -> Table:
    """Return the table of the orders that are followed."""
    grid = Table("order", "", "due→came:answer, in seconds", box=None, pad_edge=False, header_style="dim")
    for track in scene.journeys:
        grid.add_row(track.case, Text(track.id, "dim", no_wrap=True), way(track, scene.began))
    return grid


def way(track: Track, began: float) -> Text:
    """Return all attempts of one order, and its end."""
    steps = [step(one, began) for _, one in sorted(track.steps.items())]
    end = Text("DLQ", "red") if track.dead else Text("done", "green") if track.committed else Text("…")
    return Text("  ").join([*steps, end])


def step(one: Step, began: float) -> Text:
    """Return one attempt as text: `1.204→1.207:500`."""
    text = Text()
    if one.due is not None:
        text.append(f"{(one.due - began) / 1000:.3f}→", "dim")
    if one.came is not None:
        held = one.due is not None and one.came - one.due > MORE_LATE * 1000
        text.append(f"{(one.came - began) / 1000:.3f}", "magenta" if held else "")
    if one.answer is not None:
        text.append(f":{one.answer or 'no-answer'}", "green" if one.good else "red")
    return text


RETRIES: dict[Mode, str] = {
    Mode.ORDERED: "in place: no copy, no event",
    Mode.RELAY: "one copy, one event, one forward",
}
"""The records written for a retry, in modes where it is not one copy and one event."""
UNSEEN: dict[Mode, str] = {Mode.PULL: "leased, and never read"}


def table(report: Report, seconds: float, mode: Mode) -> Table:
    """Return the result as a table."""
    grid = Table("", Column(justify="right"), "", box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    rows: list[tuple[str, object, str]] = [
        ("orders", report.orders, f"in {seconds:.0f} s"),
        ("committed", report.committed, "taken by the service"),
        ("dead-lettered", report.dead, "refused, or retries used up"),
        *((f"{ordinal(n)} delivery", made, "") for n, made in enumerate(report.deliveries, 1)),
        ("retries", report.retries, RETRIES.get(mode, "one copy and one event each")),
        *([("in line", report.in_line, "each after all before it with its key")] if mode is Mode.ORDERED else []),
        *spread_row("lateness", report.lateness, "after RETRY_DUE_AT"),
        *spread_row("release", report.release, "after the level's end"),
        *spread_row("held back", report.held_back, "due during the outage"),
        ("duplicates", report.duplicates, "attempts delivered again"),
        ("unseen", report.unseen, UNSEEN.get(mode, "cut off before they were read")),
    ]
    for name, value, note in rows:
        grid.add_row(name, str(value), Text(note, "dim"))
    return grid


def spread_row(name: str, spread: Spread, what: str) -> Iterable[tuple[str, object, str]]:
    """Yield the row of one lateness; no row if nothing was measured."""
    if spread.count:
        times = f"{spread.p50:.0f} / {spread.p99:.0f} / {spread.worst:.0f} ms"
        yield f"{name} p50/p99/max", times, f"{spread.count} {what}"


def ordinal(number: int) -> str:
    """Format an ordinal: `1st`, `2nd`, `3rd`, `4th`."""
    special = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else special.get(number % 10, 'th')}"
