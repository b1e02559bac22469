"""The history of each record of a group, from full dumps of its topics and the service's ledger.

Pure: rows in, histories out. `verify.py` judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from sidecar.dev.demo.ledger import Delivery
from topics.events import BadEvent, Event, State, decode_event
from topics.headers import BadHeader, RetryState, parse_retry_headers
from topics.names import Kind, Names, Role

ANY_DUE = 2**63 - 1
"""No limit on due times: `verify.py` judges when retries were delivered, however late they were due."""


class Row(NamedTuple):
    """One record as it is in its topic; `timestamp` is epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def place(self) -> str:
        """`topic:partition:offset`; for a main topic this is the record's id."""
        return f"{self.topic}:{self.partition}:{self.offset}"


class Copy(NamedTuple):
    """A record that the sidecar wrote. `wait` is its level's delay in ms, 0 on the ready topic and the DLQ."""

    row: Row
    life: RetryState
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

    def written(self) -> Iterator[Copy]:
        """Yield every copy that the sidecar wrote."""
        for copies in self.copies.values():
            yield from copies
        yield from self.dead

    def told(self, state: State, times: int | None = None) -> int:
        """Return the number of events with this state, and with this retry count if given."""
        return sum(event.state is state and times in (None, event.times) for event in self.events)


_Open: TypeAlias = Callable[[str], RecordHistory]


class Histories(NamedTuple):
    """Every history by id, and the records that could not be read."""

    accounts: dict[str, RecordHistory]
    unreadable: tuple[Finding, ...]


def build_histories(
    rows: Iterable[Row], deliveries: Iterable[Delivery], names: Names, topics: Collection[str]
) -> Histories:
    """Build the histories of a group whose main topics are `topics`; rows of other topics are skipped."""
    accounts: dict[str, RecordHistory] = {}
    unreadable: list[Finding] = []

    def account(identity: str) -> RecordHistory:
        return accounts.setdefault(identity, RecordHistory(identity))

    for row in rows:
        role = names.role(row.topic, topics)
        match role.kind if role is not None else None:
            case Kind.MAIN:
                account(row.place).first = row
            case Kind.EVENTS:
                _enter_event(row, account, unreadable)
            case Kind.LEVEL | Kind.READY | Kind.DLQ:
                assert role is not None
                _enter_copy(row, role, account, unreadable, topics)
    for delivery in deliveries:
        account(delivery.id).deliveries.setdefault(delivery.times, []).append(delivery)
    for one in accounts.values():
        for copies in one.copies.values():
            copies.sort(key=lambda copy: (copy.row.timestamp, copy.row.place))
    return Histories(accounts, tuple(unreadable))


def _enter_event(row: Row, account: _Open, unreadable: list[Finding]) -> None:
    event = decode_event(row.value)
    if isinstance(event, BadEvent):
        unreadable.append(Finding("unreadable", row.place, event.text))
    else:
        account(event.id).events.append(event)


def _enter_copy(row: Row, role: Role, account: _Open, unreadable: list[Finding], topics: Collection[str]) -> None:
    life = parse_retry_headers(list(row.headers), topics, ANY_DUE)
    if isinstance(life, BadHeader):
        unreadable.append(Finding("unreadable", row.place, life.text))
        return
    copy = Copy(row, life, role.delay or 0)
    if role.kind is Kind.DLQ:
        account(life.id).dead.append(copy)
    else:
        account(life.id).copies.setdefault(life.times, []).append(copy)
