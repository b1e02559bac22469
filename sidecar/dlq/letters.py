"""Dead letters: which are asked for, what may be done with each, and the records that bring one back. Pure.

A dead letter's *stay* in the DLQ is one record there: its origin id and its RETRY_REDRIVES. Each stay is redriven at
most once; what is known of redrives before is in `redrive_history.py`.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.copies import redriven_writes
from sidecar.core.decide import Retry
from sidecar.core.policy import Policy
from sidecar.core.record import Record
from topics.headers import EDITED, LARGEST_LONG, BadHeader, Headers, RetryState, parse_retry_headers, reason_class
from topics.names import LEGAL_NAMES, Kind

MOST_REDRIVES = 3
"""A record that came back so often is left: redriving it once more will not mend it."""
MOST_COUNT = 999_999
"""What RETRY_REDRIVES can hold."""


class Letter(msgspec.Struct, frozen=True, gc=False):
    """A record of the DLQ. `life` is None where our headers are not as agreed; `fault` says why it is not redriven."""

    record: Record
    life: RetryState | None
    fault: str = ""

    @property
    def place(self) -> str:
        """Where it lies, `topic:partition:offset`."""
        return f"{self.record.source.topic}:{self.record.source.number}:{self.record.offset}"

    @property
    def id(self) -> str:
        """The origin id; its own place where our headers are not as agreed."""
        return self.place if self.life is None else self.life.id

    @property
    def redrives(self) -> int:
        """How often it was redriven before."""
        return 0 if self.life is None else self.life.redrives

    @property
    def reason(self) -> str:
        """The class of its last failure."""
        return "" if self.life is None else reason_class(self.life.reason)


def read_letter(record: Record, policy: Policy) -> Letter:
    """What a record of the DLQ is. Never raises."""
    if record.headers is None:
        return Letter(record, None, "its headers cannot be read")
    life = parse_retry_headers(record.headers, LEGAL_NAMES, LARGEST_LONG)
    if isinstance(life, BadHeader):
        return Letter(record, None, life.text)
    role = policy.names.role(life.topic, policy.topics)
    if role is None:
        return Letter(record, life, f"its topic {life.topic} is not among the topics of this configuration")
    if role.kind is Kind.MAIN:
        return Letter(record, life)
    # A record of ours whose headers were broken: its main topic is not known, and no sidecar would deliver it.
    return Letter(record, life, f"it died with broken headers, as a record of {life.topic}, which is no main topic")


class Filter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename=lambda name: name[0]):
    """Which dead letters are meant: all conditions that are given, each of its values is enough.

    `since` (with it) and `until` (without) are epoch ms of the record's time in the DLQ. `headers`: a name, and a
    value or None for any. `below`: only letters with fewer redrives. All of it depends on the record alone and never
    changes, so that a filter says for ever which records it has met.
    """

    ids: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    headers: tuple[tuple[str, str | None], ...] = ()
    since: int = msgspec.field(default=0, name="f")
    until: int = LARGEST_LONG
    below: int = MOST_COUNT

    def selects(self, letter: Letter) -> bool:
        """Whether the letter is meant."""
        return (
            self.since <= letter.record.timestamp < self.until
            and letter.redrives < self.below
            and (not self.ids or letter.id in self.ids or letter.place in self.ids)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.topics or (letter.life is not None and letter.life.topic in self.topics))
            and all(has_header(letter.record.headers or [], name, value) for name, value in self.headers)
        )

    def within(self, wider: Filter) -> bool:
        """Whether `wider` is certain to select everything that this one selects."""
        return (
            wider.since <= self.since
            and self.until <= wider.until
            and self.below <= wider.below
            and all(
                not theirs or (bool(own) and set(own) <= set(theirs))
                for own, theirs in ((self.ids, wider.ids), (self.reasons, wider.reasons), (self.topics, wider.topics))
            )
            and set(wider.headers) <= set(self.headers)
        )


def has_header(headers: Headers, name: str, value: str | None) -> bool:
    """Whether a header of that name is there, with that value unless it is None."""
    wanted = None if value is None else value.encode()
    return any(key == name and (wanted is None or data == wanted) for key, data in headers)


class RedriveRequest(msgspec.Struct, frozen=True):
    """What a redrive is asked for. `forgotten`: also letters of which nobody knows any more whether they were.

    `topics`: the main topics that the asking configuration has, whose letters alone it can redrive; empty: not known.
    """

    filter: Filter = Filter()
    most_redrives: int = MOST_REDRIVES
    forgotten: bool = False
    topics: tuple[str, ...] = ()


class Eligibility(enum.StrEnum):
    """What a redrive does with a letter that it is asked for, and why not."""

    READY = "ready"
    """It is redriven."""
    REDRIVEN = "redriven"
    """It was, before."""
    QUARANTINED = "quarantined"
    """It came back too often."""
    FORGOTTEN = "forgotten"
    """It is so old that Kafka no longer knows whether it was."""
    UNFIT = "unfit"
    """No sidecar would deliver it: our headers on it are not as agreed."""


def redrive(letter: Letter, policy: Policy, now: int) -> SettledRecord:
    """The copy on the ready topic, and the event, of a letter that is redriven now (epoch ms); it must be fit."""
    assert letter.life is not None
    life = replace(letter.life, times=0, redrives=letter.life.redrives + 1, due_at=now)
    return SettledRecord(letter.record, Retry(life, None), redriven_writes(letter.record, life, policy, now))


def edited(letter: Letter, value: bytes | None, audit: bytes) -> Letter:
    """The letter with another value, and the audit header behind its own headers."""
    headers: Headers = [*(letter.record.headers or []), (EDITED, audit)]
    return replace(letter, record=replace(letter.record, value=value, headers=headers))
