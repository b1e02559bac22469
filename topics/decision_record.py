"""Records of decisions about waiting records: what becomes of which, who decided it, and why (contract 5.7).

One record of the control log (`decision/<id>`) is one decision, be it about one record or about thousands. It names a
filter, or one attempt of one record, and the ranges of offsets in which it applies: what waited when it was written.
The owners of these partitions carry it out in their transactions, and note in partition 1 how far they are
(`owner_notes.py`). A deleted record means that the decision has ended.

Commands that plan a decision and owners that carry it out ask the same `DecisionRecord.fits`. A record of the log is
untrusted until it is parsed. This module is pure.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import msgspec

from reconsume.topics import versions
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.durations import render_duration
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.names import Kind
from reconsume.topics.rates import FORM
from reconsume.topics.reasons import reason_class
from reconsume.topics.retry_headers import ID, RetryState

DECISION = b"decision/"
"""The prefix of the key of a decision, before its id."""
COMMIT, DEAD_LETTER, RETRY_NOW = "commit", "dead-letter", "retry-now"
"""What an operator may decide about a waiting record: it is done, it goes to the DLQ, it is tried now. Of a dead letter
only `commit` can be decided."""
WAYS = (COMMIT, DEAD_LETTER, RETRY_NOW)
PARKED = "parked"
"""The level of a record that has used up its retries and waits in its queue for an operator."""
MOST_DECISIONS = 1_000
"""Decisions of a group that may be open at a time."""
MOST_RANGES = 20_000
"""Ranges of all open decisions of a group."""
LASTS_MS = 86_400_000
"""ms after which a decision is over, whatever is left of it."""
LONGEST_NAME, LONGEST_WHY, LONGEST_ID, LONGEST_TOPIC, LONGEST_KEY = 256, 1_000, 300, 249, 4_096
"""Characters of an author, a reason, an id and a topic, and bytes of a key."""
IDENT = re.compile(rb"[A-Za-z0-9-]{1,64}")
"""An id of a decision: it is also the nonce in RETRY_SETTLED."""
LOG = re.compile(r"|[0-9a-f]{8}")

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Topic: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_TOPIC)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_ID)]


class DecidedRange(msgspec.Struct, frozen=True, array_like=True):
    """A partition and the offsets in it to which a decision applies: from `start` up to `end`, without it.

    `log`: the digest of the topic's id (`LogId.topic`); empty where the broker has no topic ids. In another log the
    decision has no effect.
    """

    topic: Topic
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    log: Annotated[str, msgspec.Meta(max_length=8)]
    start: Long
    end: Long


class DecisionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision about waiting records. `at` is epoch ms.

    `how`: one of WAYS. `who` and `why` are for people. `rate`: how many records of the group may be settled in a time,
    as in the configuration; empty: no bound.

    Either `id` with `cycle`, `redrives` and `times` names one attempt of one record; or the other fields are a filter,
    and each that is not empty must fit: `topic` (the main topic), `reason` (the class of the last failure), `level`
    (`level_of_wait`), `key` (Base64 in JSON; None: any).

    `ranges`: where it applies, each partition at most once.
    """

    how: Annotated[str, msgspec.Meta(max_length=32)]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    why: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_WHY)]
    at: Long
    ranges: tuple[DecidedRange, ...]
    rate: Annotated[str, msgspec.Meta(max_length=32)] = ""
    id: Text = ""
    cycle: Long = 0
    redrives: Long = 0
    times: Long = 0
    topic: Text = ""
    reason: Text = ""
    level: Annotated[str, msgspec.Meta(max_length=32)] = ""
    key: bytes | None = None
    v: int = msgspec.field(default_factory=lambda: 1)  # a default would be omitted

    @property
    def attempt(self) -> Attempt:
        """The attempt that a decision about one record is for."""
        return attempt_of(self)

    def fits(self, state: RetryState, key: bytes | None, level: str) -> bool:
        """Return whether a waiting record is meant, wherever it lies. `level`: as `level_of_wait` returns it."""
        if self.id:
            return self.id == state.id and attempt_of(self) == attempt_of(state)
        return (
            self.topic in ("", state.topic)
            and self.level in ("", level)
            and (not self.reason or self.reason == reason_class(state.reason))
            and self.key in (None, key)
        )

    def is_over(self, now_ms: int) -> bool:
        """Return whether it has no effect any more at this time (epoch ms)."""
        return now_ms >= self.at + LASTS_MS


class DecisionHeard(msgspec.Struct, frozen=True):
    """The decision with this id. `record` is None if it has ended."""

    id: str
    record: DecisionRecord | None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(DecisionRecord)


def level_of_wait(state: RetryState, kind: Kind, rules: GroupRules) -> str:
    """Return the level of a record's wait, as an operator names it: `10m`, `ready`, `ordered` in a queue, or `parked`.

    A wait of several hops has the level in which it began. `kind`: of the topic in which the record is now.
    """
    if state.parked:
        return PARKED
    if kind is Kind.ORDERED:
        return str(kind)
    began = max(state.postponed_at, state.last_failed_at or state.first_failed_at)
    delay = rules.level_for((state.due_at - began) * rules.speed)
    return str(Kind.READY) if delay is None else render_duration(delay)


def decision_key(ident: str) -> bytes:
    """Return the key of the decision with this id."""
    return DECISION + ident.encode()


def render_decision(record: DecisionRecord) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def read_decision(key: bytes, value: bytes | None) -> DecisionHeard | str:
    """Return what a record with the key of a decision says, or why it says nothing, in one sentence. Never raises."""
    ident = key[len(DECISION) :]
    if not IDENT.fullmatch(ident):
        return f"the key {key[:40]!r} names no decision"
    if value is None:
        return DecisionHeard(ident.decode(), None)
    record = versions.decoded(_DECODER, value, "the decision is")
    if isinstance(record, str):
        return record
    return fault_of_decision(record) or DecisionHeard(ident.decode(), record)


def fault_of_decision(record: DecisionRecord) -> str:
    """Return why nobody can carry out a decision, in one sentence; empty if it can be."""
    if record.how not in WAYS:
        return f"the decision asks for {record.how[:40]!r}, which is none of {', '.join(WAYS)}"
    if record.id and ID.fullmatch(record.id.encode(errors="replace")) is None:
        return "the decision is about an id that names no record"
    if record.rate and FORM.fullmatch(record.rate) is None:
        return "the decision has a rate that is not like 50/s"
    if not all(text.isprintable() for text in (record.who, record.why, record.topic, record.reason, record.level)):
        return "the decision has text that cannot be printed"
    if record.key is not None and len(record.key) > LONGEST_KEY:
        return f"the decision has a key of more than {LONGEST_KEY} bytes"
    if any(one.start > one.end or LOG.fullmatch(one.log) is None for one in record.ranges):
        return "the decision has a range that no log has"
    named = {(one.topic, one.partition) for one in record.ranges}
    return "" if len(named) == len(record.ranges) else "the decision names a partition twice"
