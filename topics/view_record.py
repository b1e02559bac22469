"""Rows of the view and sums: a record's present state, what happened in a minute, and the order of two states.

A row is untrusted until it is decoded: any writer to its topic may write anything. A malformed record gives a
value that says why, never an exception. Readers keep the greater state of an id, never simply the last (contract 11.2).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from reconsume.topics import json_bounds as bounds
from reconsume.topics import versions
from reconsume.topics.events import Count, Event, Long, Order, State, order

LARGEST = 16 * 1024
"""Bytes of a value. Ours have about 500. A larger one would only cost every reader memory and disk."""
LONGEST_KEY = 1024
"""Bytes of a key. An id is a topic's name and two numbers."""
MINUTE = 60_000
COUNTED = {
    "waiting": State.WAITING_RETRY,
    "committed": State.COMMIT,
    "dead": State.DLQ,
    "redriven": State.REDRIVEN,
}
"""The counts of the sums, and the state that each of them counts. DISMISSED is in no sum: nothing failed or was mended
with it."""


class ViewRow(Event, frozen=True, gc=False, kw_only=True):
    """The present state of one record: the event that caused it, with what that event says of the record's history.

    Times are epoch ms; `updated_at` is when the event's own record was written. `retries` and `last_failed_at` are
    those of `Event`, and always there.
    """

    last_failed_at: Long
    retries: Count
    updated_at: Long


class StatsRow(msgspec.Struct, frozen=True, gc=False):
    """What happened to the records of one topic in a minute (its begin, epoch ms), for one level and reason."""

    group: str
    minute: Long
    topic: str
    level: str | None
    reason: str
    waiting: Count
    committed: Count
    dead: Count
    redriven: Count
    v: Literal[1] = 1


class Forgotten(msgspec.Struct, frozen=True):
    """A tombstone: the key was deleted from the topic."""

    key: str


class BadRow(msgspec.Struct, frozen=True):
    """The reason why a record does not have the form of its topic, as one sentence for people."""

    text: str


ViewHeard: TypeAlias = ViewRow | Forgotten | BadRow

_ENCODER = msgspec.json.Encoder()
_VIEW = msgspec.json.Decoder(ViewRow)


def encode_row(row: ViewRow | StatsRow) -> bytes:
    """Return the row as JSON."""
    return _ENCODER.encode(row)


def decode_view(group: str, key: bytes | None, value: bytes | None) -> ViewHeard:
    """Return the content of a record of the group's view: a row, a tombstone, or what is wrong. Never raises.

    Unknown fields are ignored; everything else must fit.
    """
    name = _key(key)
    if isinstance(name, BadRow):
        return name
    if value is None:
        return Forgotten(name)
    if why := bounds.excess(value, LARGEST):
        return BadRow(why)
    row = versions.decoded(_VIEW, value, "the value is")
    if isinstance(row, str):
        return BadRow(row)
    if row.group != group:
        return BadRow("the row is of another group")
    return row if row.id == name else BadRow(f"the key {_shown(key)} is not the row's id")


def view_order(row: ViewRow) -> tuple[Order, int]:
    """Return the sort key of a state: the order of its event, then when the row was written.

    On a tie the later offset is the greater.
    """
    return order(row), row.updated_at


def _key(key: bytes | None) -> str | BadRow:
    if key is None or not 1 <= len(key) <= LONGEST_KEY:
        return BadRow(f"the key {_shown(key)} has no length of 1 to {LONGEST_KEY} bytes")
    try:
        return key.decode()
    except UnicodeDecodeError:
        return BadRow(f"the key {_shown(key)} is not UTF-8")


def _shown(key: bytes | None) -> str:
    return "null" if key is None else repr(key[:40])[1:]
