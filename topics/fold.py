"""Rows of the view and sums from events: a row is a function of one event, the greatest of its record. Pure functions.

Events may come in any order, be repeated, and be split over batches and restarts: the greatest stays. The Spark job
makes the same row of each event (`spark/view.py`), and readers keep the greatest. The sums are counts, so each event
must be added once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from reconsume.topics.events import AHEAD, FAILURES, BadEvent, Event, Order, State, decode_event, order
from reconsume.topics.view_record import COUNTED, MINUTE, StatsRow, ViewRow


class Folded(NamedTuple):
    """A row of the view, and the partition and offset of the event that gave its state."""

    row: ViewRow
    partition: int
    offset: int


class SumsKey(NamedTuple):
    """What events are counted by, in the order of `StatsRow`. `minute`: its begin (epoch ms)."""

    minute: int
    topic: str
    level: str | None
    reason: str


def read_event(group: str, value: bytes | None, stamp: int, clock: int) -> Event | BadEvent:
    """Return the event in a record of the group's events topic, or why it is none. Never raises.

    `stamp`: the record's timestamp (epoch ms, negative if it has none). `clock`: the time that the event may not be
    ahead of: the stamp, if a broker gave it, else now.
    """
    event = decode_event(value)
    if isinstance(event, BadEvent):
        return event
    if event.group != group:
        return BadEvent("the event is of another group")
    # Its time would stand above all others for ever.
    limit = (min(stamp, clock) if stamp >= 0 else clock) + AHEAD
    if event.at > limit or event.first_failed_at > limit:
        return BadEvent("its clock is ahead")
    return event


def row_of(event: Event, partition: int, offset: int, written: int) -> Folded:
    """Return the row of a record whose latest event this is. `written`: when the event's own record was (epoch ms).

    What the event leaves out is its own count, and its own time if a failure caused it, else that of the first failure.
    """
    failed, retries = event.last_failed_at, event.retries
    if not isinstance(failed, int):
        failed = event.at if event.state in FAILURES else event.first_failed_at
    if not isinstance(retries, int):
        retries = event.times
    # Whatever fields an event has, its row has them too.
    fields = msgspec.structs.asdict(event) | {"last_failed_at": failed, "retries": retries}
    row = ViewRow(**fields, updated_at=max(event.at, written))
    return Folded(row, partition, offset)


def order_key(folded: Folded) -> tuple[Order, int, int]:
    """Return the sort key of a row's state: the order of its event, then where that lies, so that no two are equal."""
    return order(folded.row), folded.partition, folded.offset


def merged(one: Folded, other: Folded) -> Folded:
    """Return the row of a record from two rows, each of some of its events: that of the greater event."""
    return one if order_key(one) >= order_key(other) else other


COUNTING = frozenset(COUNTED.values())
"""The states that are in the sums."""


def sums_of(events: Iterable[Event]) -> dict[SumsKey, StatsRow]:
    """Return the sums of events of one group."""
    counts_by_key: dict[SumsKey, Counter[State]] = {}
    group = ""
    for event in events:
        if event.state not in COUNTING:
            continue
        group = event.group
        key = SumsKey(event.at - event.at % MINUTE, event.topic, event.level, event.reason)
        counts_by_key.setdefault(key, Counter())[event.state] += 1
    return {key: _row(group, key, counts) for key, counts in counts_by_key.items()}


def _row(group: str, key: SumsKey, counts: Mapping[State, int]) -> StatsRow:
    waiting, committed, dead, redriven = (counts[state] for state in COUNTED.values())
    return StatsRow(group, *key, waiting, committed, dead, redriven)
