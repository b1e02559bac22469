"""Dead letters: which of them a request selects, and what a redrive does with each. Pure.

A dead letter's *stay* in the DLQ is one death of a record: its origin id, cycle, redrives and times. Each stay is
redriven at most once; of several letters of one stay all but one are copies (`copies.py`). What is known of earlier
redrives is in `redrive_history.py`, and where a redrive sends a letter in `redrive_target.py`.
"""

from __future__ import annotations

import enum
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Record
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


OPEN = frozenset(Eligibility) - {Eligibility.REDRIVEN, Eligibility.DISMISSED, Eligibility.COPY}
"""The states of dead letters that an operator has still to decide about. A list has them if no states are asked for."""


def edited(letter: Letter, value: bytes | None, who: str, at: int) -> Letter:
    """Return the letter with another value, and RETRY_EDITED after its own headers. `at` is epoch ms."""
    was, new = (None if data is None else sha256(data).hexdigest() for data in (letter.record.value, value))
    audit = msgspec.json.encode({"v": 1, "who": who, "at": at, "was": was, "is": new})
    headers: Headers = [*(letter.record.headers or []), (EDITED, audit)]
    return replace(letter, record=replace(letter.record, value=value, headers=headers))
