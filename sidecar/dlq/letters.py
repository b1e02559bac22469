"""Dead letters as values: how one is read, which of them a filter selects, and what a redrive writes for one. Pure.

A dead letter's *stay* in the DLQ is one death of a record: its origin id, cycle, redrives and times. Each stay is
redriven at most once; of several dead letters of one stay all but one are copies (`copies.py`). What is known of
earlier redrives is in `redrive_history.py`.

`FILTER_FIELDS` is the table of the conditions that a user can give: their names in options, forms and links, their
help, and whether they may be named in a log. A new condition needs a field of `Filter`, a line in `selects` and in
`within`, and a row of the table.

A redrive sends a dead letter to the ready topic, or in an ordered group with the ladder to the queue of its main topic,
behind its key (contract 4.2, 5.5).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Record
from reconsume.topics.attempt import attempt_of
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.names import LEGAL_NAMES, Kind
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import (
    LARGEST_COUNT,
    LARGEST_LONG,
    BadHeader,
    Headers,
    RetryState,
    parse_retry_headers,
)
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import redriven_writes
from reconsume.topics.transitions import redriven

MOST_REDRIVES = 3
"""Redrives after which a record is left, by default. It came back so often that another redrive will not help."""


LONGEST_FILTER = 1_024
"""Characters of one text of a filter. A redrive stores its filter in a committed offset's metadata, which has 4 KiB,
packed."""


class Letter(msgspec.Struct, frozen=True, gc=False):
    """A record of the DLQ.

    `retry_state` is None if Reconsume's headers on it cannot be read or break their agreed form. `fault` says why the
    letter is not redriven.
    """

    record: Record
    retry_state: RetryState | None
    fault: str = ""

    @property
    def position(self) -> str:
        """The position of the record, `topic:partition:offset`."""
        return f"{self.record.source.topic}:{self.record.source.number}:{self.record.offset}"

    @property
    def id(self) -> str:
        """The origin id; the position of the record if `retry_state` is None."""
        return self.position if self.retry_state is None else self.retry_state.id

    @property
    def redrives(self) -> int:
        """The number of earlier redrives."""
        return 0 if self.retry_state is None else self.retry_state.redrives

    @property
    def topic(self) -> str:
        """The main topic of the record; empty if `retry_state` is None."""
        return "" if self.retry_state is None else self.retry_state.topic

    @property
    def series(self) -> tuple[str, str]:
        """The origin id, and its cycle and redrives. An import skips a line if the DLQ has a dead letter with these."""
        return self.id, "" if self.retry_state is None else attempt_of(self.retry_state).series

    @property
    def reason(self) -> str:
        """The class of the last failure."""
        return "" if self.retry_state is None else reason_class(self.retry_state.reason)

    @property
    def text(self) -> str:
        """What is said of the last failure beside its class; empty if nothing."""
        return "" if self.retry_state is None else text_of(self.retry_state.reason)


def read_letter(record: Record, policy: Policy) -> Letter:
    """Parse a record of the DLQ. Never raises."""
    if record.headers is None:
        return Letter(record, None, "its headers cannot be read")
    retry_state = parse_retry_headers(record.headers, LEGAL_NAMES, LARGEST_LONG)
    if isinstance(retry_state, BadHeader):
        return Letter(record, None, retry_state.text)
    role = policy.names.role(retry_state.topic, policy.topics)
    if role is None:
        return Letter(
            record, retry_state, f"its topic {retry_state.topic} is not among the topics of this configuration"
        )
    if role.kind is Kind.MAIN:
        return Letter(record, retry_state)
    # A retry copy with broken headers: its main topic is not known, so no sidecar would deliver it.
    return Letter(
        record, retry_state, f"it died with broken headers, as a record of {retry_state.topic}, which is no main topic"
    )


class Filter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename=lambda name: name[0]):
    """The conditions by which dead letters are selected. A letter must meet all that are given.

    Of several ids, reasons, topics or keys one is enough; of several headers, and of texts that the value contains,
    each is required. `since` (inclusive) and `until` (exclusive) are epoch ms of the record's time in the DLQ.
    `headers` holds pairs of a name and a value; the value None stands for any. `below` selects only letters with fewer
    redrives. Keys and contained texts are compared as UTF-8; a record without key or value has none of them.

    All conditions depend on the record alone and never change. So a filter selects the same letters at any later time.
    """

    ids: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    headers: tuple[tuple[str, str | None], ...] = ()
    since: int = msgspec.field(default=0, name="f")
    until: int = LARGEST_LONG
    below: int = LARGEST_COUNT
    keys: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()

    def selects(self, letter: Letter) -> bool:
        return (
            self.since <= letter.record.timestamp < self.until
            and letter.redrives < self.below
            and (not self.ids or letter.id in self.ids or letter.position in self.ids)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.topics or (letter.retry_state is not None and letter.retry_state.topic in self.topics))
            and all(has_header(letter.record.headers or [], name, value) for name, value in self.headers)
            and (not self.keys or letter.record.key in [key.encode() for key in self.keys])
            and all(text.encode() in (letter.record.value or b"") for text in self.contains)
        )

    def within(self, wider: Filter) -> bool:
        """Whether `wider` is certain to select every letter that this filter selects."""
        return (
            wider.since <= self.since
            and self.until <= wider.until
            and self.below <= wider.below
            and all(
                not theirs or (bool(own) and set(own) <= set(theirs))
                for own, theirs in (
                    (self.ids, wider.ids),
                    (self.reasons, wider.reasons),
                    (self.topics, wider.topics),
                    (self.keys, wider.keys),
                )
            )
            and set(wider.headers) <= set(self.headers)
            and set(wider.contains) <= set(self.contains)
        )


class FilterField(NamedTuple):
    """A condition as users give it. `name`: of the option `--name` and of the form's field; `member`: of `Filter`.

    `noun`: what is counted where its values must not be named, because they may be personal data.
    """

    name: str
    member: str
    metavar: str
    help: str
    noun: str = ""


FILTER_FIELDS = (
    FilterField("id", "ids", "ID", "The record's id, like orders:3:1024; may be repeated."),
    FilterField("reason", "reasons", "CLASS", "The last failure's class, like http-500; may be repeated."),
    FilterField("topic", "topics", "TOPIC", "The main topic; may be repeated."),
    FilterField(
        "header", "headers", "NAME[=VALUE]", "Has this header, with this value; repeated: all of them.", "header"
    ),
    FilterField("key", "keys", "KEY", "The record's key, as text; may be repeated.", "key"),
    FilterField("contains", "contains", "TEXT", "Its value has this text; repeated: all of them.", "text in the value"),
)
"""The conditions that are texts. A time range comes in addition to them (`since` and `until`)."""


def filter_of(texts: Mapping[str, Sequence[str]], since: int = 0, until: int = LARGEST_LONG) -> Filter:
    """Return the filter with these texts, by the names of `FILTER_FIELDS`. `since` and `until` are epoch ms.

    Each text counts once, and in order: the same filter has one form, however it was typed. Raises ValueError, with one
    sentence, if a text cannot be in a filter.
    """
    for text in (text for values in texts.values() for text in values):
        if fault := fault_of_text(text):
            raise ValueError(fault)
    members: dict[str, Any] = {field.member: tuple(sorted(set(texts.get(field.name, ())))) for field in FILTER_FIELDS}
    pairs = [text.partition("=") for text in members.pop("headers")]
    headers = {(name, value if sign else None) for name, sign, value in pairs}
    return Filter(headers=tuple(sorted(headers, key=str)), since=since, until=until, **members)


def fault_of_text(text: str) -> str:
    """Return why a text cannot be in a filter, as one sentence; empty if it can."""
    if not text or any("\ud800" <= sign <= "\udfff" for sign in text):
        return f"a filter must be text in UTF-8, and this one is {text[:40]!r}"
    if len(text) > LONGEST_FILTER:
        return f"a filter has at most {LONGEST_FILTER} characters, and this one {len(text)}"
    return ""


def has_header(headers: Headers, name: str, value: str | None) -> bool:
    """Whether a header of this name is present, with this value unless it is None."""
    wanted = None if value is None else value.encode()
    return any(key == name and (wanted is None or data == wanted) for key, data in headers)


class RedriveRequest(msgspec.Struct, frozen=True):
    """A request to redrive dead letters.

    `forgotten`: also take letters for which it is no longer known whether they were redriven. `topics`: the main topics
    of the caller's configuration, because only their letters can be redriven; empty if they are not known.
    """

    filter: Filter = Filter()
    most_redrives: int = MOST_REDRIVES
    forgotten: bool = False
    topics: tuple[str, ...] = ()


class Eligibility(enum.StrEnum):
    """The outcome of a redrive for a letter that its filter selects."""

    READY = "ready"
    """The letter is redriven."""
    REDRIVEN = "redriven"
    """The letter was redriven before."""
    QUARANTINED = "quarantined"
    """The letter came back too often."""
    FORGOTTEN = "forgotten"
    """The letter is so old that Kafka no longer knows whether it was redriven."""
    UNFIT = "unfit"
    """No sidecar would deliver the letter: its headers break their agreed form, or its topic is not configured."""
    COPY = "copy"
    """Another dead letter with the same id and attempt counts."""
    DISMISSED = "dismissed"
    """A person has seen the letter and decided that nobody will mend it (`settle --commit`)."""
    SUPERSEDED = "superseded"
    """A reset has had the record delivered again, in a later cycle than the letter's."""


OPEN = frozenset(Eligibility) - {
    Eligibility.REDRIVEN,
    Eligibility.DISMISSED,
    Eligibility.COPY,
    Eligibility.SUPERSEDED,
}
"""The states of dead letters that an operator has still to decide about. A list has them if no states are asked for."""


def edited(letter: Letter, value: bytes | None, who: str, at: int) -> Letter:
    """Return the letter with another value, and RETRY_EDITED after its own headers. `at` is epoch ms."""
    was, new = (None if data is None else sha256(data).hexdigest() for data in (letter.record.value, value))
    audit = msgspec.json.encode({"v": 1, "who": who, "at": at, "was": was, "is": new})
    headers: Headers = [*(letter.record.headers or []), (EDITED, audit)]
    return replace(letter, record=replace(letter.record, value=value, headers=headers))


def redrive(letter: Letter, policy: Policy, now: int, order: Order | None = None) -> SettledRecord:
    """Return a redrive's writes: the copy for the ready topic, and its event. `now` is epoch ms.

    With an `order` the copy is for the queue of its main topic. The letter must not be UNFIT.
    """
    assert letter.retry_state is not None
    retry = redriven(letter.retry_state, now, order)
    return SettledRecord(letter.record, retry, redriven_writes(letter.record, retry.retry_state, policy, now))


def target_of(policy: Policy, *, queued: bool) -> str:
    """Return the topics that a redrive sends dead letters to. `queued`: the group has a ladder that keeps the order."""
    return ", ".join(policy.names.queues_of(policy.topics) if queued else ()) or policy.names.ready
