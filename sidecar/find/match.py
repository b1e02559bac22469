"""What a search asks for, and what it knows of a record that matches. Pure.

`finder.py` reads the records. The command line and the dashboard print the matches.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.preview import BEGINNING
from reconsume.sidecar.group_policy.blocking import Blocking
from reconsume.sidecar.printable import as_of
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.names import LEGAL_NAMES, Kind
from reconsume.topics.reasons import reason_class
from reconsume.topics.render_headers import without_ours
from reconsume.topics.retry_headers import ID, LARGEST_LONG, BadHeader, RetryState, parse_retry_headers


class Field(enum.StrEnum):
    """A field of a record in which a text is searched."""

    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"


EVERY_FIELD = frozenset(Field)
RETRIES = frozenset({Kind.LEVEL, Kind.ORDERED, Kind.READY})
"""The kinds of topics where records wait for a retry."""
EVERY_KIND = RETRIES | {Kind.MAIN, Kind.DLQ}


class Query(NamedTuple):
    """The conditions of a search. A record must meet all that are given.

    `text`: bytes that a key, a value or a header (its name or value) contains. `key`, `id`: the whole key, the whole
    id or position of a copy. `topic`: the main topic. `since`: records that were written at or after this time (epoch
    ms). `kinds`: the topics that are read. `done`: records that are done match as well.
    """

    text: bytes | None = None
    key: bytes | None = None
    id: str | None = None
    fields: frozenset[Field] = EVERY_FIELD
    topic: str | None = None
    since: int | None = None
    kinds: frozenset[Kind] = EVERY_KIND
    done: bool = False

    @property
    def shows_values(self) -> bool:
        """Whether the answer tells something of keys, values or headers, even if it shows none of them."""
        return self.text is not None or self.key is not None

    def fits(self, record: Record) -> bool:
        """Whether key, value and headers are as wanted. Our own headers are never searched."""
        if self.key is not None and record.key != self.key:
            return False
        if self.text is None:
            return True
        text, fields = self.text, self.fields
        return (
            (Field.KEY in fields and text in (record.key or b""))
            or (Field.VALUE in fields and text in (record.value or b""))
            or (
                Field.HEADERS in fields
                and any(
                    text in name.encode() or text in (value or b"")
                    for name, value in without_ours(record.headers or [])
                )
            )
        )


class Where(enum.StrEnum):
    """How a record that is not done waits."""

    UNDELIVERED = "undelivered"
    """In a main topic. It was never copied: it is in flight, retried in place, or not read yet."""
    UNCOMMITTED = "uncommitted"
    """Behind the beginning of an open transaction. It may be part of that one, and may still be aborted."""
    WAITING = "waiting"
    READY = "ready"
    BEHIND = "behind"
    PARKED = "parked"
    SUPERSEDED = "superseded"
    """A copy of an earlier cycle of a record that a reset has had delivered again."""
    DEAD = "dead letter"
    BROKEN = "broken"
    """On a topic of ours, with headers that break their form."""


WHY = {
    Where.UNDELIVERED: "not done yet: in flight, retried in place, or not read yet",
    Where.UNCOMMITTED: "an open transaction holds it back, and may still abort it",
    Where.WAITING: "waits for its next retry",
    Where.READY: "due, and delivered next",
    Where.BEHIND: "waits behind an earlier record of its key",
    Where.PARKED: "its retries are used up; it blocks its key until an operator settles it",
    Where.SUPERSEDED: "a reset has had the record delivered again: this copy ends without a delivery at its turn",
    Where.BROKEN: "its headers break their form; a sidecar dead-letters it",
}
HOLDABLE = frozenset({Where.UNDELIVERED, Where.WAITING, Where.READY, Where.BEHIND})
"""How a record waits that an operator's hold keeps back from being delivered."""
LETTERS = {
    Eligibility.READY: "a redrive brings it back",
    Eligibility.QUARANTINED: "was redriven too often; --max-redrives takes it too",
    Eligibility.FORGOTTEN: "so old that Kafka no longer knows whether it was redriven; --forgotten takes it too",
    Eligibility.UNFIT: "cannot be redriven",
}
"""Why a dead letter waits. The others are done, or copies of one that counts."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """A record that matches. Times are epoch ms.

    `topic`: the main topic, None if it is not known. `reason`: the class of the last failure, empty without one. `due`:
    0 if it has no due time. `at`: when this copy was written. `position`: `topic:partition:offset` of this copy. `key`,
    `value`: their first 512 bytes, unless the whole was asked for; None for readers who may not see them. `verdict`: of
    a dead letter, what a redrive does with it.
    """

    id: str
    where: Where
    why: str
    reason: str
    times: int
    redrives: int
    due: int
    at: int
    topic: str | None
    position: str
    kind: Kind
    key: bytes | None
    value: bytes | None
    verdict: Eligibility | None = None

    @property
    def offset(self) -> int:
        """The offset of this copy in its partition."""
        return int(self.position.rpartition(":")[2])

    def tried(self, head: InPlaceTold) -> Match:
        """Return the match of a record that is retried in place, with what its instance says of it."""
        return msgspec.structs.replace(self, times=head.times, reason=head.reason, due=0 if head.held else head.due)

    def without_values(self) -> Match:
        """Return what a reader may see who may see no values."""
        return msgspec.structs.replace(self, key=None, value=None)


def state_of(record: Record) -> RetryState | None:
    """Return the retry state in the headers of a copy; None if they break their form."""
    if record.headers is None:
        return None
    state = parse_retry_headers(record.headers, LEGAL_NAMES, LARGEST_LONG)
    return None if isinstance(state, BadHeader) else state


def match_of(
    record: Record,
    kind: Kind,
    state: RetryState | None,
    where: Where,
    why: str = "",
    verdict: Eligibility | None = None,
    *,
    whole: bool = False,
) -> Match:
    """Return what is shown of a record. `state`: None on main topics, and where headers are broken."""
    position = record.position
    most = None if whole else BEGINNING
    return Match(
        id=position if state is None else state.id,
        where=where,
        why=why or WHY[where],
        reason="" if state is None else reason_class(state.reason),
        times=0 if state is None else state.times,
        redrives=0 if state is None else state.redrives,
        due=0 if state is None or where not in (Where.WAITING, Where.READY) else state.due_at,
        at=max(0, record.timestamp),
        topic=record.source.topic if kind is Kind.MAIN else None if state is None else state.topic,
        position=position,
        kind=kind,
        key=None if record.key is None else record.key[:most],
        value=None if record.value is None else record.value[:most],
        verdict=verdict,
    )


def undelivered_text(source: Partition, *, in_place: bool) -> str:
    """Return why a record of a main topic is not done. `in_place`: the group retries in place, which has no event."""
    text = WHY[Where.UNDELIVERED]
    logged = f"the log of the instance that owns {source} has one failure of each class a minute"
    return f"{text}; {logged}" if in_place else text


class Tried(NamedTuple):
    """What is known of a record of a main topic by the records that are retried in place.

    `head`: what is said of the record itself; None if nothing is. `why`: why it waits; empty if nothing is known.
    """

    head: InPlaceTold | None
    why: str


def tried_in_place(record: Record, named: Mapping[str, Blocking], order: str, now: int) -> Tried:
    """Return what is known of a record that is not done. `named`: by id. `now`: epoch ms."""
    if (own := named.get(record.position)) is not None:
        blocks = {"key": "; it blocks its key", "partition": "; it blocks its partition"}.get(order, "")
        return Tried(own.head, f"retried in place: {own.fails(now)}{blocks}")
    for ident, one in named.items():
        origin = origin_in(ident)
        if origin is None or order == "none" or origin[:2] != record.source or origin[2] > record.offset:
            continue
        if order == "partition":
            return Tried(None, f"waits behind {ident}, which is retried in place{as_of(now - one.at)}")
    return Tried(None, "")


def held_text(where: Where, ident: str, end: str) -> str:
    """Return why a record waits that the hold with this id keeps back, until `end`, a time for people.

    What waits for its time, or for another record, does so as well.
    """
    held = f"held by {ident}, until {end}"
    return f"{held}; {WHY[where]}" if where in (Where.WAITING, Where.BEHIND) else held


def where_of(kind: Kind, state: RetryState | None) -> Where:
    """Return how an open record on a topic of this kind waits."""
    if kind is Kind.MAIN:
        return Where.UNDELIVERED
    if state is None:
        return Where.BROKEN
    if state.parked:
        return Where.PARKED
    if state.behind:
        return Where.BEHIND
    return Where.READY if kind is Kind.READY else Where.WAITING


def letter_match(letter: Letter, verdict: Eligibility, *, is_held: bool, whole: bool = False) -> Match | None:
    """Return what is shown of a dead letter; None if it is done: redriven, or dismissed,
    or a copy of one that counts.

    `is_held`: it is behind the beginning of an open transaction.
    """
    why = LETTERS.get(verdict)
    if why is None:
        return None
    where, why = (Where.UNCOMMITTED, "") if is_held else (Where.DEAD, f"{why}: {letter.fault}" if letter.fault else why)
    return match_of(letter.record, Kind.DLQ, letter.retry_state, where, why, verdict, whole=whole)


def origin_in(ident: str | None) -> tuple[str, int, int] | None:
    """Return the topic, partition and offset that an id consists of; None if it is not one."""
    match = None if ident is None else ID.fullmatch(ident.encode(errors="replace"))
    return None if match is None else (match[1].decode(), int(match[2]), int(match[3]))
