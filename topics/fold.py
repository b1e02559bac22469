"""The fold of events into the view and the sums: what a row is after any number of events. Pure functions.

`merged` is a maximum: events may come in any order, be repeated, and be split over batches and restarts, and the rows
are the same. The Spark job folds by the same rule (`spark/view.py`, ORDER_KEY), with the functions of its engine. The
sums are counts, so each event must be added once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from topics.events import AHEAD, BadEvent, Event, State, decode_event, order
from topics.retry_headers import LARGEST_COUNT
from topics.view_record import COUNTED, MINUTE, StatsRow, ViewRow

FAILURES = (State.WAITING_RETRY, State.DLQ)
"""The states that a failure causes."""


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
    """Return the row of a record that has no other event. `written`: when the event's own record was (epoch ms)."""
    failed = event.at if event.state in FAILURES else event.first_failed_at
    # By position: whatever fields an event has, its row has them too.
    fields = msgspec.structs.astuple(event)
    row = ViewRow(*fields, last_failed_at=failed, retries=event.times, updated_at=max(event.at, written))
    return Folded(row, partition, offset)


def order_key(folded: Folded) -> tuple[int, ...]:
    """Return the sort key of a row's state: the order of its event, then where that lies, so that no two are equal."""
    return (*order(folded.row), folded.partition, folded.offset)


def merged(one: Folded, other: Folded) -> Folded:
    """Return the row of a record from two rows, each of some of its events."""
    now, then = (one, other) if order_key(one) >= order_key(other) else (other, one)
    row = msgspec.structs.replace(
        now.row,
        first_failed_at=min(now.row.first_failed_at, then.row.first_failed_at),
        last_failed_at=max(now.row.last_failed_at, then.row.last_failed_at),
        retries=max(now.row.retries, then.row.retries),
        updated_at=max(now.row.updated_at, then.row.updated_at),
    )
    return Folded(row, now.partition, now.offset)


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


def added(one: StatsRow, other: StatsRow) -> StatsRow:
    """Return the sums of two rows with one key. A count stays at its largest value."""
    counts = {name: min(getattr(one, name) + getattr(other, name), LARGEST_COUNT) for name in COUNTED}
    return msgspec.structs.replace(one, **counts)
