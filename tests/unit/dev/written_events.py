"""A history whose events say what their copies say, as the sidecar writes both in one transaction."""

from __future__ import annotations

from collections.abc import Iterable

from reconsume.sidecar.dev.demo.record_histories import Row
from reconsume.topics.events import Event, State, decode_event, encode_event, event_of
from reconsume.topics.names import Kind, Names
from reconsume.topics.retry_headers import RetryState, parse_retry_headers
from tests.support.proof.history import life

NAMES = Names("billing")
Copies = dict[tuple[str, int, bool], tuple[RetryState, int | None]]


def as_written(rows: Iterable[Row]) -> list[Row]:
    """The rows in their order, their events told anew from the first copy of the same retry."""
    rows = list(rows)
    copies: Copies = {}
    for row in sorted(rows, key=lambda row: row.timestamp):
        role = NAMES.role(row.topic, ["orders"])
        if role is not None and role.kind in (Kind.LEVEL, Kind.READY, Kind.DLQ):
            found = parse_retry_headers(list(row.headers), ["orders"], 2**63 - 1)
            if isinstance(found, RetryState):
                copies.setdefault((found.id, found.times, role.kind is Kind.DLQ), (found, role.delay))
    return [told_anew(row, copies) if row.topic == NAMES.events else row for row in rows]


def told_anew(row: Row, copies: Copies) -> Row:
    """The event with the state, the due time and the level of its copy. An event without a copy keeps its own."""
    event = decode_event(row.value)
    if not isinstance(event, Event):
        return row
    own = life(event.id, event.times, event.due), None
    state, level = copies.get((event.id, event.times, event.state is State.DLQ), own)
    failed = state.due_at - (level or 0) if event.state is State.WAITING_RETRY else state.due_at + 20
    level = level if event.state is State.WAITING_RETRY else None
    anew = event_of(state, event.state, level, group="billing", instance="i", at=failed)
    return row._replace(value=encode_event(anew))
