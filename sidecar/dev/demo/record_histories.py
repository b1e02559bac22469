"""The history of each record of a group: the facts of an audit, beside what the service saw of it.

Pure: facts in, histories out. `verify.py` judges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.sidecar.audit.parsing import TopicRecord
from reconsume.sidecar.dev.demo.ledger import Delivery
from reconsume.topics.events import State

Row: TypeAlias = TopicRecord


class Finding(msgspec.Struct, frozen=True, order=True):
    """One violation: its kind, the record's id, and a sentence."""

    kind: str
    id: str
    text: str


class RecordHistory(msgspec.Struct):
    """One record: its first copy, its copies by retry and in the DLQ, its events, and its deliveries."""

    id: str
    first: Row | None = None
    copies: dict[int, list[Fact]] = msgspec.field(default_factory=dict)
    dead: list[Fact] = msgspec.field(default_factory=list)
    events: list[Fact] = msgspec.field(default_factory=list)
    deliveries: dict[int, list[Delivery]] = msgspec.field(default_factory=dict)
    delays: Mapping[str, int] = {}
    """The delay of each topic where copies wait, in ms."""

    @property
    def retries(self) -> int:
        """The number of its last retry."""
        return max(self.copies, default=0)

    @property
    def committed(self) -> bool:
        """Whether the service took it."""
        return any(delivery.verdict == "commit" for made in self.deliveries.values() for delivery in made)

    def told(self, state: State) -> int:
        """Return the number of events with this state."""
        return sum(event.state == state for event in self.events)


def build_histories(
    firsts: Iterable[Row], facts: Iterable[Fact], deliveries: Iterable[Delivery], delays: Mapping[str, int]
) -> dict[str, RecordHistory]:
    """Build the histories by id, from the rows of the main topics, the facts of the group's own topics, and the ledger.

    Records that cannot be read are no part of any history; the audit reports them.
    """
    histories: dict[str, RecordHistory] = {}

    def history(identity: str) -> RecordHistory:
        return histories.setdefault(identity, RecordHistory(identity, delays=delays))

    for row in firsts:
        history(row.position).first = row
    for fact in sorted(facts, key=lambda fact: (fact.at, fact.position)):
        match fact.what:
            case FactKind.COPY:
                history(fact.id).copies.setdefault(fact.times, []).append(fact)
            case FactKind.DEAD:
                history(fact.id).dead.append(fact)
            case FactKind.TOLD:
                history(fact.id).events.append(fact)
    for delivery in deliveries:
        history(delivery.id).deliveries.setdefault(delivery.times, []).append(delivery)
    return histories
