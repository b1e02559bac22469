"""The overview of a group, from the local copy of the view: states, due times, reasons, topics, minutes.

Waiting records are read in the order of their due time, up to a limit. So the chart is correct up to a time that it
shows, however many records wait beyond it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from math import inf
from typing import NamedTuple

from reconsume.sidecar.ui.charts import DueChart, Lane, due_chart
from reconsume.sidecar.view.query import DeadLetters, Due, LevelWaits, Minute, ViewQuery
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


class Summary(NamedTuple):
    """The overview of a group.

    `levels`: what waits in each level, the shortest first, whether or not the group has committed anything there;
    `idle`: the levels in which nothing waits. `parked`: how many wait for an operator, `ready`: of the others, how many
    in no level. `topics`: the topics of which most waits, with how many. `minutes`: those of the last hour, which began
    at `first_minute` (epoch ms).
    """

    counts: dict[str, int]
    levels: list[LevelWaits]
    idle: list[str]
    parked: int
    ready: int
    dead: list[DeadLetters]
    due: DueChart
    failures: Failures
    storm: Storm | None
    topics: list[tuple[str, int]]
    minutes: list[Minute]
    first_minute: int


def summarize(query: ViewQuery, now: int, rule: Rule, delays: Collection[int]) -> Summary:
    """Build the overview from the view. `delays`: of the group's levels, in ms. Raises sqlite3.Error."""
    rows, first = query.waiting(MOST + 1), (now // MINUTE_MS - MINUTES + 1) * MINUTE_MS
    more, rows = len(rows) > MOST, rows[:MOST]
    failures, counts, parked = query.failures(now - rule.window, now), query.counts(), query.parked()
    levels = sorted(query.levels(now), key=lambda one: _rank(one.level))
    busy = {one.level for one in levels}
    return Summary(
        counts={str(state): counts.get(state, 0) for state in State},
        levels=levels,
        idle=[name for name in map(render_duration, sorted(delays)) if name not in busy],
        parked=parked,
        ready=max(0, counts.get(State.WAITING_RETRY, 0) - parked - sum(one.records for one in levels)),
        dead=query.dead(MOST_REASONS),
        due=due_chart(lanes_of(rows, now), max(0, rows[-1].due - now) if more else None),
        failures=failures,
        storm=storm_of(failures, rule),
        topics=Counter(row.topic for row in rows).most_common(8),
        first_minute=first,
        minutes=query.minutes(first, first + MINUTES * MINUTE_MS),
    )


def lanes_of(rows: list[Due], now: int) -> list[Lane]:
    """Return a lane for each level, the shortest first; records without a level come last."""
    waits: dict[tuple[float, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.due:  # otherwise it is parked
            waits[_rank(row.level)].append(row.due - now)
    lanes = [Lane(name, waits[delay, name]) for delay, name in sorted(waits)]
    if len(lanes) > MOST_LANES:
        lanes[MOST_LANES:] = [Lane("more", [wait for lane in lanes[MOST_LANES:] for wait in lane.waits])]
    return lanes


def _rank(level: str | None) -> tuple[float, str]:
    """Return a level's sort key: its delay and its name. Records without a level, or with an invalid one, come last."""
    try:
        return (inf, "ready") if level is None else (float(parse_duration(level)), level)
    except ValueError:  # any text is possible: it comes from a topic
        return inf, "other"
