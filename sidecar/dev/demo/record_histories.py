"""The history of each record of a group, from full dumps of its topics and the service's ledger.

Pure: rows in, histories out. `verify.py` judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from sidecar.audit.parsing import TopicRecord
from sidecar.dev.demo.ledger import Delivery
from topics.events import Event, State, decode_event
from topics.headers import BadHeader, RetryState, parse_retry_headers
from topics.names import Kind, Names, Role

ANY_DUE = 2**63 - 1
"""No limit on due times: `verify.py` judges when retries were delivered, however late they were due."""

Row: TypeAlias = TopicRecord


class Copy(NamedTuple):
    """A record that the sidecar wrote. `wait` is its level's delay in ms, 0 on the ready topic and the DLQ."""

    row: Row
    retry_state: RetryState
    wait: int


class Finding(msgspec.Struct, frozen=True, order=True):
    """One violation: its kind, the record's id, and a sentence."""

    kind: str
    id: str
    text: str


class RecordHistory(msgspec.Struct):
    """One record: its first copy, its copies by retry and in the DLQ, its events, and its deliveries."""

    id: str
    first: Row | None = None
    copies: dict[int, list[Copy]] = msgspec.field(default_factory=dict)
    dead: list[Copy] = msgspec.field(default_factory=list)
    events: list[Event] = msgspec.field(default_factory=list)
    deliveries: dict[int, list[Delivery]] = msgspec.field(default_factory=dict)

    @property
    def retries(self) -> int:
        """The number of its last retry."""
        return max(self.copies, default=0)

    @property
    def committed(self) -> bool:
        """Whether the service took it."""
        return any(delivery.verdict == "commit" for made in self.deliveries.values() for delivery in made)

    def events_of(self, state: State) -> int:
        """Return the number of events with this state."""
        return sum(event.state is state for event in self.events)


def build_histories(
    rows: Iterable[Row], deliveries: Iterable[Delivery], names: Names, topics: Collection[str]
) -> dict[str, RecordHistory]:
    """Build the histories of a group whose main topics are `topics`, by id.

    Rows of other topics are skipped, and rows that cannot be read, which the audit reports.
    """
    histories: dict[str, RecordHistory] = {}

    def history_of(identity: str) -> RecordHistory:
        return histories.setdefault(identity, RecordHistory(identity))

    for row in rows:
        role = names.role(row.topic, topics)
        match role.kind if role is not None else None:
            case Kind.MAIN:
                history_of(row.position).first = row
            case Kind.EVENTS:
                if isinstance(event := decode_event(row.value), Event):
                    history_of(event.id).events.append(event)
            case Kind.LEVEL | Kind.READY | Kind.DLQ:
                assert role is not None
                _enter_copy(row, role, history_of, topics)
    for delivery in deliveries:
        history_of(delivery.id).deliveries.setdefault(delivery.times, []).append(delivery)
    for one in histories.values():
        for copies in one.copies.values():
            copies.sort(key=lambda copy: (copy.row.timestamp, copy.row.position))
    return histories


def _enter_copy(row: Row, role: Role, history_of: Callable[[str], RecordHistory], topics: Collection[str]) -> None:
    retry_state = parse_retry_headers(row.headers or [], topics, ANY_DUE)
    if isinstance(retry_state, BadHeader):
        return
    copy = Copy(row, retry_state, role.delay or 0)
    if role.kind is Kind.DLQ:
        history_of(retry_state.id).dead.append(copy)
    else:
        history_of(retry_state.id).copies.setdefault(retry_state.times, []).append(copy)
