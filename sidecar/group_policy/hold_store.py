"""Read and write the holds of a group, for the command line, the API and the dashboard.

The policy topic is read as a whole. Raises as `PolicyStore` does: one sentence, within seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Message
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.group_policy.hold_book import HoldBook
from reconsume.sidecar.group_policy.topic import policy_cluster, read_messages, write_records
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.topics import versions
from reconsume.topics.hold_record import (
    HOLD,
    IDENT,
    LONGEST_HOLD_MS,
    LONGEST_WHY,
    MOST_HOLDS,
    HoldHeard,
    HoldRecord,
    fault_of_hold,
    hold_key,
    parse_hold,
    render_hold,
)
from reconsume.topics.names import Names
from reconsume.topics.policy_record import BadRecord, parse_record

CLIENT = "reconsume-hold"
MOST_REMEMBERED = 200
"""Holds that `HoldStore.history` returns: the newest, so that a flood of them takes no memory."""


class HoldsThere(NamedTuple):
    """The holds that a policy topic has.

    `live`: those in force, by id. `ignored`: why others are not. `over`: ids whose end is past. `newer`: ids of those
    that a newer version wrote.
    """

    live: Mapping[str, HoldRecord]
    ignored: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()


class Selection(NamedTuple):
    """What a person wants to hold: all that is given must fit; `all` where nothing is."""

    topic: str | None = None
    level: str | None = None
    key: bytes | None = None
    all: bool = False


class HoldStore:
    """The holds of one group."""

    def __init__(self, kafka: Mapping[str, str], names: Names) -> None:
        self._kafka, self._names = kafka, names

    def read(self) -> HoldsThere:
        """Return the holds. Raises ContractError if the topic does not exist, and BrokerError if it cannot be read."""
        return holds_of(self._messages(), wall())

    def history(self) -> Mapping[str, HoldRecord]:
        """Return the newest holds whose records the topic has, by id: in force, released and over.

        Raises as `read` does.
        """
        return history_of(self._messages())

    def begin(self, selection: Selection, lasts: int, why: str, who: str, there: HoldsThere) -> tuple[str, HoldRecord]:
        """Write a hold of `lasts` ms, and return its id and record. `there`: what `read` has returned.

        Raises ContractError if it may not be, and BrokerError if it is not known to be written.
        """
        record = built(selection, lasts, why, who)
        if len(there.live) >= MOST_HOLDS:
            raise ContractError(f"{MOST_HOLDS} holds are in force already: `{hint('release')}` ends one")
        ident = secrets.token_hex(4)
        self._write({hold_key(ident): render_hold(record), **dict.fromkeys(map(hold_key, there.over))})
        return ident, record

    def release(self, idents: Iterable[str], who: str, there: HoldsThere, newer: Iterable[str] = ()) -> None:
        """End holds that are in force, and delete those of a `newer` version. Raises RecordError for one that is not in
        force, and BrokerError."""
        idents = tuple(idents)
        if unknown := [ident for ident in idents if ident not in there.live]:
            raise RecordError(f"no hold {unknown[0][:64]} is in force; `{hint('holds')}` lists them")
        at = wall()
        over = {ident: replace(there.live[ident], released_by=who, released_at=at) for ident in idents}
        ended = {hold_key(ident): render_hold(record) for ident, record in over.items()}
        self._write({**ended, **dict.fromkeys(map(hold_key, newer))})

    def _messages(self) -> Iterator[Message]:
        return read_messages(policy_cluster(self._kafka, self._names, CLIENT), self._names, ANSWER_SECONDS)

    def _write(self, records: Mapping[bytes, bytes | None]) -> None:
        write_records(self._kafka, self._names, CLIENT, records)


def expect_main_topic(selection: Selection, topics: Sequence[str]) -> None:
    """Raise ContractError if a selection names a topic that is none of the main `topics`: it would hold nothing."""
    if selection.topic is not None and selection.topic not in topics:
        raise ContractError(f"the topic must be one of the group's main topics: {', '.join(topics)}")


def built(selection: Selection, lasts: int, why: str, who: str) -> HoldRecord:
    """Return the record of a hold that begins now. Raises ContractError if it may not be."""
    if not 1_000 <= lasts <= LONGEST_HOLD_MS:
        raise ContractError("a hold lasts from 1s to 7d")
    if not why.strip() or len(why) > LONGEST_WHY:
        raise ContractError(f"the reason must have 1 to {LONGEST_WHY} characters")
    at = wall()
    record = HoldRecord(at, at + lasts, why, who, *selection)
    read = fault_of_hold(record) or parse_hold(render_hold(record))  # the second knows how long each text may be
    if isinstance(read, str):
        raise ContractError(read)
    return read


def holds_of(messages: Iterable[Message], now: int) -> HoldsThere:
    """Return the holds that the messages of a policy topic tell of, at `now` (epoch ms)."""
    book, over, refused, newer = HoldBook(), set[str](), dict[str, str](), set[str]()
    for message in messages:
        key = message.key() or b""
        match parse_record(message.key(), message.value()):
            case HoldHeard(id=ident, record=record):
                (over.add if record is not None and record.until <= now else over.discard)(ident)
                refused.pop(ident, None)
                newer.discard(ident)
                if why := book.hear(ident, record, now):
                    refused[ident] = why
            case BadRecord(text=text) if key.startswith(HOLD) and len(refused) < MOST_HOLDS:
                ident = key[len(HOLD) :].decode("ascii", errors="replace")
                refused[ident] = text
                if IDENT.fullmatch(ident) and versions.newer(message.value() or b"") is not None:
                    newer.add(ident)
    force = book.in_force(now)
    ignored = [*refused.values()]
    if force.ignored:
        ignored.append(f"{force.ignored} are beyond the {MOST_HOLDS} that are in force at a time")
    return HoldsThere(force.records, tuple(ignored), tuple(sorted(over)[:MOST_HOLDS]), tuple(sorted(newer)))


def history_of(messages: Iterable[Message]) -> Mapping[str, HoldRecord]:
    """Return the last record of each hold that the messages of a policy topic tell of: the newest MOST_REMEMBERED.

    A deleted hold is in it for as long as Kafka keeps its record. A release stays, even if an instance that has not
    heard of it writes the hold again.
    """
    history = dict[str, HoldRecord]()
    for message in messages:
        match parse_record(message.key(), message.value()):
            case HoldHeard(id=ident, record=HoldRecord() as record):
                known = history.pop(ident, None)
                history[ident] = known if known is not None and known.released and not record.released else record
                if len(history) > MOST_REMEMBERED:
                    del history[next(iter(history))]
    return history
