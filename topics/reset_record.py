"""Records of resets on the policy topic: which positions an operator wants moved, and to where (contract 10.11).

A reset is a request on partition 0, under the key `reset/<id>`. The owner of each of its partitions carries it out, in
one transaction with a record of its own on partition 1, which names the reset's id. The request itself never changes.
Its targets are offsets: the command has looked up what a time means. They are of one topic, and each is based on the
reset that was the last one in its partition. If either has changed, nothing happens there.

A record is untrusted until it is parsed. Pure.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from reconsume.topics import versions
from reconsume.topics.hold_record import IDENT, LONGEST_NAME, LONGEST_TOPIC, LONGEST_WHY, shown_key

RESET = b"reset/"
"""The prefix of the key of a request, before its id."""
MOST_RESETS, MOST_TARGETS_KEPT = 100, 4_000
"""Requests that are kept, the newest ones, and the partitions that they name together."""
MOST_TARGETS = 1_000
"""Partitions of a request, each of some 30 bytes: a value has 64 KiB at most."""
CARRIED_OUT_WITHIN_MS = 3_600_000
"""ms after which a request that was not carried out has no effect any more."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ResetTarget(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What a reset wants of one partition.

    `target`: the offset from which on records are delivered. `based_on`: the id of the last reset that was carried out
    in this partition when the request was planned; empty if there was none.
    """

    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    target: Long
    based_on: Annotated[str, msgspec.Meta(max_length=64)] = ""


class ResetRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reset that somebody wants. `at`: when it was written (epoch ms), by the clock of the log in a `ControlState`.

    `id`: of the topic that the targets are offsets of, as in the notes of owners (`LogId.topic`).
    `to`: the target as it was typed, for people. `skips`: what earlier resets have not delivered yet is skipped, too,
    as with `latest`.
    """

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_TOPIC)]
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    targets: Annotated[tuple[ResetTarget, ...], msgspec.Meta(min_length=1, max_length=MOST_TARGETS)]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    why: Annotated[str, msgspec.Meta(max_length=LONGEST_WHY)]
    at: Long
    to: Annotated[str, msgspec.Meta(max_length=64)] = ""
    skips: bool = False
    v: int = msgspec.field(default_factory=lambda: 1)  # a default would be omitted

    def target_of(self, topic: str, partition: int) -> ResetTarget | None:
        """Return what it wants of a partition; None if nothing."""
        if topic != self.topic:
            return None
        return next((one for one in self.targets if one.partition == partition), None)

    def is_over(self, now_ms: int) -> bool:
        """Whether it is too old to be carried out. `now_ms`: by the clock of the log."""
        return now_ms - self.at > CARRIED_OUT_WITHIN_MS


class ResetHeard(msgspec.Struct, frozen=True):
    """The request with this id. `record` is None if it was deleted."""

    id: str
    record: ResetRequest | None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ResetRequest)


def reset_key(ident: str) -> bytes:
    """Return the key of the request with this id."""
    return RESET + ident.encode()


def render_reset(record: ResetRequest) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def read_reset(key: bytes, value: bytes | None) -> ResetHeard | str:
    """Return what a record with the key of a reset says, or why it says nothing, in one sentence. Never raises."""
    ident = key[len(RESET) :].decode("ascii", errors="replace")
    if not IDENT.fullmatch(ident):
        return f"the key reset/{shown_key(key[len(RESET) :])} names no reset"
    if value is None:
        return ResetHeard(ident, None)
    record = versions.decoded(_DECODER, value, f"reset {ident} is")
    if isinstance(record, str):
        return record
    if not all(text.isprintable() for text in (record.topic, record.who, record.why, record.to)):
        return f"reset {ident} has text that cannot be printed"
    if len({one.partition for one in record.targets}) < len(record.targets):
        return f"reset {ident} names a partition twice"
    return ResetHeard(ident, record)
