"""Turn a record on a topic, as bytes, into the fact that an audit keeps. Pure; it raises nothing, whatever the bytes.

Headers and events must have their one strict form (`topics/retry_headers.py`, `topics/events.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.events import BadEvent, decode_event
from reconsume.topics.group_rules import CLOCK_SLACK
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.levels import LONGEST
from reconsume.topics.names import LEGAL_NAMES, Kind
from reconsume.topics.other_group_headers import is_original
from reconsume.topics.outputs import output_of
from reconsume.topics.policy_record import OF_SPARK
from reconsume.topics.reasons import reason_class
from reconsume.topics.render_headers import without_ours
from reconsume.topics.retry_headers import (
    ID,
    RESERVED,
    RETRY_GROUP,
    RETRY_HEADERS_DROPPED,
    RETRY_TOPIC,
    BadHeader,
    Headers,
    RetryState,
    parse_retry_headers,
)
from reconsume.topics.retry_order import RETRY_BEHIND
from reconsume.topics.transitions import UNREADABLE

CHANGED = "edited"
"""`Fact.state` of a copy that differs from its record on purpose: RETRY_EDITED, RETRY_HEADERS_DROPPED."""
_ENCODER = msgspec.msgpack.Encoder()


class TopicRecord(NamedTuple):
    """A record as it is stored in a topic.

    `headers` is None if the client cannot read them. `timestamp` is epoch ms.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def position(self) -> str:
        """The position of the record, `topic:partition:offset`."""
        return f"{self.topic}:{self.partition}:{self.offset}"


def fact_in(row: TopicRecord, kind: Kind, group: str, sources: Collection[str], later: bool = False) -> Fact:
    """Return the fact of a record on a topic of this kind. See `copy_fact` for `sources`."""
    match kind:
        case Kind.MAIN:
            return main_fact(row)
        case Kind.EVENTS:
            return event_fact(row, group, later)
        case _:
            return copy_fact(row, FactKind.DEAD if kind is Kind.DLQ else FactKind.COPY, group, sources, later)


def copy_fact(row: TopicRecord, what: FactKind, group: str, sources: Collection[str], later: bool) -> Fact:
    """Return the fact of a record on a level topic, ready topic or DLQ; `FactKind.BAD` if its headers break the form.

    `sources`: the topics that REAL_TOPIC usually names. A record that names another topic is a copy all the same.
    """
    if row.headers is None:
        return bad_fact(row, UNREADABLE, later)
    latest = row.timestamp + LONGEST + CLOCK_SLACK
    state = parse_rendered(row.headers, sources, latest) or parse_retry_headers(row.headers, LEGAL_NAMES, latest)
    fault = state.text if isinstance(state, BadHeader) else misplaced(row, group)
    if fault or isinstance(state, BadHeader):
        return bad_fact(row, fault, later)
    return fact_of(row, what, state, later)


def fact_of(row: TopicRecord, what: FactKind, state: RetryState, later: bool) -> Fact:
    """Return the fact of a record whose headers have their agreed form."""
    return Fact(
        what=what,
        id=state.id,
        redrives=state.redrives,
        times=state.times,
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        at=row.timestamp,
        due=state.due_at,
        first_failed_at=state.first_failed_at,
        timestamp=state.timestamp,
        reason=reason_class(state.reason),
        later=later,
        digest=digest_of(row),
        state=CHANGED if any(name in (EDITED, RETRY_HEADERS_DROPPED) for name, _ in row.headers or ()) else "",
        parked=state.parked,
        postponed=bool(state.postponed_at),
        cycle=state.cycle,
    )


def only_postponed(row: TopicRecord, fact: Fact) -> bool:
    """Return whether a copy waits only because its service has postponed the record, or behind another of its key.

    No attempt is counted by it, and no event tells of it: for the rules it is as if the record still lay in its topic.
    """
    if fact.what is not FactKind.COPY or fact.times or fact.redrives:
        return False
    return fact.postponed or any(name == RETRY_BEHIND for name, _ in row.headers or ())


def misplaced(row: TopicRecord, group: str) -> str:
    """Return one sentence if RETRY_TOPIC or RETRY_GROUP is wrong; empty if both are right."""
    # The ten headers are the last ones on nearly every record, so the search begins at the end.
    for name, value in reversed(row.headers or []):
        if name == RETRY_TOPIC and value != row.topic.encode():
            return f"{RETRY_TOPIC} is {(value or b'')[:60]!r}, and it lies in {row.topic}"
        if name == RETRY_GROUP and value != group.encode():
            return f"{RETRY_GROUP} is {(value or b'')[:60]!r}, and the group is {group}"
    return ""


def bad_fact(row: TopicRecord, fault: str, later: bool) -> Fact:
    """Return the fact of a record that breaks the form. Its id is its own position."""
    return Fact(
        FactKind.BAD, row.position, 0, 0, row.topic, row.partition, row.offset, row.timestamp, reason=fault, later=later
    )


def event_fact(row: TopicRecord, group: str, later: bool) -> Fact:
    """Return the fact of a record on the events topic; `FactKind.BAD` if it is not an event of this group."""
    event = decode_event(row.value)
    if isinstance(event, BadEvent):
        return bad_fact(row, event.text, later)
    if event.group != group:
        return bad_fact(row, f"the event is of group {event.group[:60]!r}", later)
    is_of_place = event.id.endswith(f":{event.partition}:{event.offset}")
    if not is_of_place or ID.fullmatch(event.id.encode()) is None:
        return bad_fact(row, f"the id {event.id[:300]!r} does not end with its partition and offset", later)
    if row.key != event.id.encode():
        return bad_fact(row, f"the key {(row.key or b'')[:300]!r} is not its id {event.id[:300]!r}", later)
    return Fact(
        FactKind.TOLD,
        event.id,
        event.redrives,
        event.times,
        row.topic,
        row.partition,
        row.offset,
        event.at,
        event.due,
        event.first_failed_at,
        max(event.timestamp, 0),
        event.reason,
        later,
        b"",
        str(event.state),
        event.level,
        event.parked is True,
        cycle=event.cycle,
        by_query=event.instance.startswith(OF_SPARK),
    )


def output_fact(row: TopicRecord, group: str, sources: Collection[str]) -> Fact | None:
    """Return the fact of an output of the group for a record of one of the topics `sources`; None for any other.

    Topics of outputs are other programs' topics too, so only what the group itself has stamped is looked at.
    """
    stamp = output_of(row.headers or [])
    if stamp is None or stamp.group != group or stamp.id.rsplit(":", 2)[0] not in sources:
        return None
    position = row.topic, row.partition, row.offset, row.timestamp
    cycle, redrives, times = stamp.attempt
    return Fact(FactKind.OUTPUT, stamp.id, redrives, times, *position, level=str(stamp.number), cycle=cycle)


def main_fact(row: TopicRecord) -> Fact:
    """Return the fact of a record on a main topic."""
    digest = b"" if row.headers is None else digest_of(row)
    return Fact(
        FactKind.MAIN,
        row.position,
        0,
        0,
        row.topic,
        row.partition,
        row.offset,
        row.timestamp,
        timestamp=max(row.timestamp, 0),
        digest=digest,
    )


def digest_of(row: TopicRecord) -> bytes:
    """Return 16 bytes that two records share only if key, value and own headers are the same, byte for byte."""
    # Names that begin with RETRY_ are left out: a newer version may have added one to the copy.
    own = [
        header
        for header in without_ours(row.headers or [])
        if not header[0].startswith(RESERVED) and not is_original(header[0])
    ]
    return hashlib.blake2b(_ENCODER.encode((row.key, row.value, own)), digest_size=16).digest()
