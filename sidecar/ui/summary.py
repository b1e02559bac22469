"""The overview of a group, from the local copy of the view: states, due times, reasons, topics, minutes.

Waiting records are read in the order of their due time, up to a limit. So the chart is correct up to a time that it
shows, however many records wait beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import inf
from typing import NamedTuple

import msgspec

from reconsume.sidecar.ui.charts import Lane, Minute
from reconsume.sidecar.view.query import DeadLetters, Filters, LevelWaits, ViewQuery
from reconsume.sidecar.view.storm import Failures, Rule, Storm, storm_of
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.events import State

MOST = 10_000
"""Records that are drawn; each query reads them again."""
MOST_LANES = 24
MOST_REASONS = 8
"""Reasons of dead letters that are shown."""
MINUTES = 60
MINUTE_MS = 60_000


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The fields of a view row that the chart needs."""

    due: int
    topic: str
    level: str | None


class Sums(msgspec.Struct, frozen=True, gc=False):
    """The fields of a sums row that the bars need."""

    minute: int
    waiting: int
    committed: int
    dead: int


class Counted(NamedTuple):
    """A name and its number of records."""

    name: str
    records: int


class Dead(NamedTuple):
    """The dead letters of one reason, and when, where and why the newest of them died (`at`: epoch ms)."""

    reason: str
    records: int
    id: str
    at: int
    text: str


class Summary(NamedTuple):
    """The overview of a group at one time (epoch ms).

    `levels`: what waits in each level, the shortest first, whether or not the group has committed anything there;
    `idle`: the levels in which nothing waits. `parked`: how many wait for a person, `ready`: of the others, how many in
    no level. `known`: ms from then up to which all waiting records are in `lanes`; None: all records.
    """

    at: int
    counts: dict[str, int]
    levels: tuple[LevelWaits, ...]
    idle: tuple[str, ...]
    parked: int
    ready: int
    dead: tuple[Dead, ...]
    lanes: tuple[Lane, ...]
    known: int | None
    failures: Failures
    storm: Storm | None
    topics: tuple[Counted, ...]
    minutes: tuple[Minute, ...]
    first_minute: int


class Newest(msgspec.Struct, frozen=True, gc=False):
    """The fields of a view row that tell of a dead letter."""

    id: str
    at: int
    text: str | None = None


_NEWEST = msgspec.json.Decoder(Newest)
_WAITING = msgspec.json.Decoder(Waiting)
_SUMS = msgspec.json.Decoder(Sums)


def summarize(query: ViewQuery, now: int, rule: Rule, delays: Collection[int]) -> Summary:
    """Build the overview from the view. `delays`: of the group's levels, in ms. Raises sqlite3.Error."""
    rows, more = waiting(query)
    failures = query.failures(now - rule.window, now)
    first = (now // MINUTE_MS - MINUTES + 1) * MINUTE_MS
    counts = query.counts()
    levels = sorted(query.levels(now), key=lambda one: _rank(one.level))
    parked = query.parked()
    busy = {one.level for one in levels}
    return Summary(
        now,
        {str(state): counts.get(state, 0) for state in State},
        tuple(levels),
        tuple(name for name in map(render_duration, sorted(delays)) if name not in busy),
        parked,
        max(0, counts.get(State.WAITING_RETRY, 0) - parked - sum(one.records for one in levels)),
        tuple(map(_dead, query.dead(MOST_REASONS))),
        lanes_of(rows, now),
        max(0, rows[-1].due - now) if more else None,
        failures,
        storm_of(failures, rule),
        tuple(Counted(*one) for one in Counter(row.topic for row in rows).most_common(8)),
        minutes_of(query, first),
        first,
    )


def _dead(letters: DeadLetters) -> Dead:
    newest = _NEWEST.decode(letters.newest)
    return Dead(letters.reason, letters.records, newest.id, newest.at, newest.text or "")


def waiting(query: ViewQuery) -> tuple[list[Waiting], bool]:
    """Return the waiting records in the order of their due time, and whether there are more."""
    rows = [_WAITING.decode(value) for value in query.every_message(Filters(state=State.WAITING_RETRY), MOST + 1)]
    return rows[:MOST], len(rows) > MOST


def lanes_of(rows: list[Waiting], now: int) -> tuple[Lane, ...]:
    """Return a lane for each level, the shortest first; records without a level come last."""
    waits: dict[tuple[float, str], list[int]] = {}
    for row in rows:
        if not row.due:  # it is parked
            continue
        waits.setdefault(_rank(row.level), []).append(row.due - now)
    ordered = [Lane(name, waits[delay, name]) for delay, name in sorted(waits)]
    if len(ordered) <= MOST_LANES:
        return tuple(ordered)
    rest = [wait for lane in ordered[MOST_LANES:] for wait in lane.waits]
    return (*ordered[:MOST_LANES], Lane("more", rest))


def _rank(level: str | None) -> tuple[float, str]:
    """Return a level's sort key: its delay and its name. Records without a level, or with an invalid one, come last."""
    try:
        return (inf, "ready") if level is None else (float(parse_duration(level)), level)
    except ValueError:  # any text is possible: it comes from a topic
        return inf, "other"


def minutes_of(query: ViewQuery, first: int) -> tuple[Minute, ...]:
    """Return the sums of each minute since `first` (epoch ms), over all topics, levels and reasons."""
    minutes: dict[int, Minute] = {}
    for row in map(_SUMS.decode, query.every_sum(first, MOST)):
        before = minutes.get(row.minute, Minute(row.minute, 0, 0, 0))
        minutes[row.minute] = Minute(
            row.minute, before.waiting + row.waiting, before.committed + row.committed, before.dead + row.dead
        )
    return tuple(minutes[minute] for minute in sorted(minutes) if minute < first + MINUTES * MINUTE_MS)
