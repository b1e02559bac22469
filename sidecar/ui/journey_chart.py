"""One record's journey as a chart: deliveries on the left line, waits on the right one, time goes down. Pure.

It is narrow by design, so that a telephone shows it without scaling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log10

from markupsafe import Markup

from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.ui.text import cut, iso, length, moment
from reconsume.topics.events import Event, State

WIDTH, SERVICE, WAITS, TEXT = 340, 84, 138, 156
"""Units: the whole width, the line of deliveries, the line of waits, the start of the text."""
TOP = 44
HEAD = 46
"""Space for an event's own text."""
LONGEST = 30
SIGN = {State.WAITING_RETRY: "✕", State.COMMIT: "✓", State.DLQ: "†", State.REDRIVEN: "↺", State.DISMISSED: "–"}
WORD = {
    State.WAITING_RETRY: "failed",
    State.COMMIT: "done",
    State.DLQ: "dead letter",
    State.REDRIVEN: "redriven",
    State.DISMISSED: "dismissed",
}
KIND = {
    State.WAITING_RETRY: "failed",
    State.COMMIT: "good",
    State.DLQ: "dead",
    State.REDRIVEN: "again",
    State.DISMISSED: "good",
}


def journey_picture(events: Sequence[Event], now: int) -> Markup:
    """Draw the journey of a record at the time `now` (epoch ms); `events` are in order."""
    tops, y = [], TOP
    for event, after in zip(events, [*events[1:], None], strict=False):
        tops.append(y)
        y += HEAD + tall(event, after, now)
    shapes = [
        Markup(
            '<svg class="journey" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        ).format(WIDTH, y + 6, f"The journey of the record, {plural(len(events), 'event')}"),
        Markup(
            '<text class="rail-name zone" x="0" y="14">UTC</text>'
            '<text class="rail-name" x="{}" y="14" text-anchor="middle">delivered</text>'
            '<text class="rail-name" x="{}" y="14" text-anchor="start">waits</text>'
            '<line class="rail" x1="{}" x2="{}" y1="24" y2="{}"/>'
        ).format(SERVICE, WAITS - 6, SERVICE, SERVICE, tops[-1] if tops else y),
    ]
    for event, top, end, after in zip(events, tops, [*tops[1:], y], [*events[1:], None], strict=False):
        shapes += _wait(event, top, end, after, now)
    for number, (event, top) in enumerate(zip(events, tops, strict=True)):
        shapes += _node(event, top, events[number - 1].at if number else None)
    return Markup("").join([*shapes, Markup("</svg>")])


def tall(event: Event, after: Event | None, now: int) -> int:
    """Return the height of a wait: a longer wait gets more, but not in proportion."""
    if event.state is not State.WAITING_RETRY:
        return 14
    waited = (now if after is None else after.at) - event.at
    return 14 + int(14 * log10(1 + max(0, waited) / 1_000))


def counting(event: Event) -> str:
    """Return how often the record was retried or redriven."""
    match event.state:
        case State.WAITING_RETRY:
            return f"retry {event.times}"
        case State.REDRIVEN:
            return f"redrive {event.redrives}"
        case _:
            return f"after {event.times} {'retry' if event.times == 1 else 'retries'}"


def _wait(event: Event, top: int, end: int, after: Event | None, now: int) -> Iterator[Markup]:
    if event.state is not State.WAITING_RETRY:
        return
    still = after is None
    down = end - 16 if still else end
    curve = f"M{SERVICE} {top} C{WAITS} {top} {WAITS} {top} {WAITS} {top + 20} L{WAITS} {down - 20}"
    if not still:
        curve += f" C{WAITS} {down} {WAITS} {down} {SERVICE} {down}"
    yield Markup('<path class="wait{}" d="{}"/>').format(" open" if still else "", curve)
    remaining = event.due - now
    waits = f"waits {length(max(0, event.due - event.at))}"
    waits += f" in level {event.level}" if event.level and waits != f"waits {event.level}" else ""
    label = f" · due in {length(remaining)}" if still and remaining > 0 else " · due now" if still else ""
    if not event.due:
        waits, label = "parked", " until a person settles it" if still else ""
    yield Markup('<text class="small" x="{}" y="{}">{}<title>{}</title></text>').format(
        TEXT, top + 34, cut(waits + label, LONGEST), printable(waits + label)
    )


def _node(event: Event, top: int, before: int | None) -> Iterator[Markup]:
    kind = KIND[event.state]
    clock = moment(event.at)
    why = f"{event.reason}: {event.text}" if event.text else event.reason
    label = WORD[event.state] + (f" · {why}" if why else "")
    yield Markup(
        '<text class="small" x="0" y="{}" data-at="{}">{}</text><circle class="node {}" cx="{}" cy="{}" r="11"/>'
        '<text class="sign" x="{}" y="{}" text-anchor="middle">{}</text>'
    ).format(top + 4, iso(event.at), clock[11:], kind, SERVICE, top, SERVICE, top + 4.5, SIGN[event.state])
    yield Markup('<text class="told {}" x="{}" y="{}">{}<title data-at="{}">{}</title></text>').format(
        kind, TEXT, top + 4, cut(label, LONGEST - 4), iso(event.at),
        printable(f"{label} by {event.instance} at {clock} UTC"),
    )  # fmt: skip
    counted = counting(event)
    if before is not None:
        counted += f" · {length(event.at - before)} later"
    yield Markup('<text class="small" x="{}" y="{}">{}</text>').format(TEXT, top + 19, counted)
