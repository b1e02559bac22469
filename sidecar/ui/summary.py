"""The group at a glance, out of the local copy of the view: states, what is due when, reasons, topics, minutes.

What is due is read in the order of its time and up to a limit, so that the picture is right up to a moment that it
names, whatever waits behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import msgspec

from sidecar.ui.charts import Lane, Minute
from sidecar.view.query import Filters, ViewQuery
from sidecar.view.storm import Failures, Rule, Storm, storm_of
from topics.durations import parse_duration
from topics.events import State

PAGE = 1_000
MOST = 10_000
"""Records that are drawn; each look reads them anew."""
MOST_LANES = 24
MINUTES = 60
MINUTE = 60_000


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """What the picture needs of a row of the view."""

    due: int
    topic: str
    level: str | None


class Sums(msgspec.Struct, frozen=True, gc=False):
    """What the bars need of a row of the sums."""

    minute: int
    waiting: int
    committed: int
    dead: int


class Counted(NamedTuple):
    """A name and how many records."""

    name: str
    records: int


class Summary(NamedTuple):
    """The group at a moment (epoch ms). `known`: ms from then up to which all that waits is in `lanes`; None: all."""

    at: int
    counts: dict[str, int]
    lanes: tuple[Lane, ...]
    known: int | None
    failures: Failures
    storm: Storm | None
    topics: tuple[Counted, ...]
    minutes: tuple[Minute, ...]
    first_minute: int


_WAITING = msgspec.json.Decoder(Waiting)
_SUMS = msgspec.json.Decoder(Sums)


def summarize(query: ViewQuery, now: int, rule: Rule) -> Summary:
    """Ask all of it. Raises sqlite3.Error."""
    rows, more = waiting(query)
    failures = query.failures(now - rule.window, now)
    first = (now // MINUTE - MINUTES + 1) * MINUTE
    return Summary(
        now,
        {str(state): query.counts().get(state, 0) for state in State},
        lanes_of(rows, now),
        max(0, rows[-1].due - now) if more else None,
        failures,
        storm_of(failures, rule),
        tuple(Counted(*one) for one in Counter(row.topic for row in rows).most_common(8)),
        minutes_of(query, first),
        first,
    )


def waiting(query: ViewQuery) -> tuple[list[Waiting], bool]:
    """What waits, the first due first, and whether there is more."""
    rows, cursor = list[Waiting](), None
    while len(rows) < MOST:
        page = query.messages(Filters(state=State.WAITING_RETRY), PAGE, cursor)
        rows += map(_WAITING.decode, page.values)
        if (cursor := page.cursor) is None:
            return rows, False
    return rows, True


def lanes_of(rows: list[Waiting], now: int) -> tuple[Lane, ...]:
    """A lane for each level, the shortest first; what has no level comes last."""
    found: dict[tuple[float, str], list[int]] = {}
    for row in rows:
        found.setdefault(_place(row.level), []).append(row.due - now)
    ordered = [Lane(name, found[delay, name]) for delay, name in sorted(found)]
    if len(ordered) <= MOST_LANES:
        return tuple(ordered)
    rest = [wait for lane in ordered[MOST_LANES:] for wait in lane.waits]
    return (*ordered[:MOST_LANES], Lane("more", rest))


def _place(level: str | None) -> tuple[float, str]:
    """A level's place in the picture, and its name: by its delay; what is none comes last, together."""
    try:
        return (inf, "ready") if level is None else (float(parse_duration(level)), level)
    except ValueError:  # whoever may write to the view may write anything
        return inf, "other"


def minutes_of(query: ViewQuery, first: int) -> tuple[Minute, ...]:
    """The sums of each minute since `first` (epoch ms), over all topics, levels and reasons."""
    found: dict[int, Minute] = {}
    for row in _sums(query, first):
        before = found.get(row.minute, Minute(row.minute, 0, 0, 0))
        found[row.minute] = Minute(
            row.minute, before.waiting + row.waiting, before.committed + row.committed, before.dead + row.dead
        )
    return tuple(found[minute] for minute in sorted(found) if minute < first + MINUTES * MINUTE)


def _sums(query: ViewQuery, first: int) -> Iterator[Sums]:
    cursor = None
    for _ in range(MOST // PAGE):
        page = query.sums(first, PAGE, cursor)
        yield from map(_SUMS.decode, page.values)
        if (cursor := page.cursor) is None:
            return
