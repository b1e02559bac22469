"""Records of actions on the policy topic: who redrove, dismissed, settled, imported or purged, when, and what became of
it (contract 10.6).

The events of a redrive name its author for each record, and the DLQ names nobody for an import. Neither answers "who
did what today?" without a scan of the whole topic. So a command writes one record for each of its runs, under a key of
its own: when it begins, and again when it ends. Compaction then keeps what became of it. A command that was killed
leaves the first one, which says that its end is not known.

A record is untrusted until it is parsed: texts that cannot be printed, or are too long, make it a bad one. A group
keeps the newest MOST_ACTIONS; each writer deletes older ones. This module is pure.
`sidecar/group_policy/operations.py` writes the records; the dashboard's page *Activity* shows them.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import msgspec

from reconsume.topics import versions

ACTION = b"action/"
"""The prefix of the key of an action, before its id."""
MOST_ACTIONS = 200
"""Actions that a group keeps. Each has some 300 bytes, which every instance reads when it starts."""
LONGEST_ACTION, LONGEST_NAME, LONGEST_WHAT, LONGEST_WHY, LONGEST_ERROR = 32, 256, 500, 1_000, 300
"""Characters of each text."""
IDENT = re.compile(rb"[A-Za-z0-9_-]{1,64}")

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ActionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a command. `at` and `ended` are epoch ms; `ended` is 0 until it has ended.

    `action`: `redrive`, `dismiss`, `settle`, `import`, `purge`, or a word of a newer version. `who` is its author.
    `what`: what it was for, in words; `why`: the reason that the author gave. `records`: how many it has changed.
    `error`: why it ended early; empty if it did not.
    """

    action: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ACTION)]
    who: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
    at: Long
    what: Annotated[str, msgspec.Meta(max_length=LONGEST_WHAT)] = ""
    why: Annotated[str, msgspec.Meta(max_length=LONGEST_WHY)] = ""
    ended: Long = 0
    records: Long = 0
    error: Annotated[str, msgspec.Meta(max_length=LONGEST_ERROR)] = ""
    v: int = msgspec.field(default_factory=lambda: 1)  # a default would be omitted


class ActionHeard(msgspec.Struct, frozen=True):
    """The action with this id. `record` is None if it was deleted."""

    id: str
    record: ActionRecord | None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ActionRecord)


def action_key(ident: str) -> bytes:
    """Return the key of the action with this id."""
    return ACTION + ident.encode()


def render_action(record: ActionRecord) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def read_action(key: bytes, value: bytes | None) -> ActionHeard | str:
    """Return what a record with the key of an action says, or why it says nothing, in one sentence. Never raises."""
    ident = key[len(ACTION) :]
    if not IDENT.fullmatch(ident):
        return f"the key {key[:40]!r} names no action"
    if value is None:
        return ActionHeard(ident.decode(), None)
    record = versions.decoded(_DECODER, value, "the action is")
    if isinstance(record, str):
        return record
    if not all(text.isprintable() for text in (record.action, record.who, record.what, record.why, record.error)):
        return "the action has text that cannot be printed"
    return ActionHeard(ident.decode(), record)
