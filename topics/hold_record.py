"""Records of holds on the policy topic: what is held, by whom, why, and until when (contract 10.4).

A record is untrusted until it is parsed. One that could not end, lasts too long or names nothing is not obeyed, and the
sentence says why.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec

from reconsume.topics import versions
from reconsume.topics.durations import parse_duration, render_duration

HOLD = b"hold/"
"""The prefix of the key of a hold, before its id."""
LONGEST_HOLD_MS = 7 * 86_400_000
CLOCKS_DIFFER_MS = 300_000
"""ms by which the clock of who wrote a hold may be ahead: so much longer than the longest hold it may seem to last."""
MOST_HOLDS = 100
"""Holds of a group that are in force at a time."""
LONGEST_WHY, LONGEST_NAME, LONGEST_TOPIC, LONGEST_LEVEL = 1_000, 256, 249, 32
LONGEST_KEY = 4_096
"""Bytes of a key that may be held. Longer ones can be held by their topic."""
SELECTORS = ("topic", "level", "key")
"""The names of what a hold may name. All that it names must fit (`holds_record`)."""
WORDS = ("main", "ready", "ordered")
"""Levels that are no delay."""
IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class HoldRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hold, or its release. `since`, `until` and `released_at` are epoch ms.

    `topic`, `level` and `key` say what is held (`sidecar/core/holds.py`); `all` is true where none of them is given.
    `key` is Base64 in JSON. `released_by` is the author of the release, and with it the hold is over.
    """

    since: Long
    until: Long
    why: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_WHY)]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_TOPIC)] | None = None
    level: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_LEVEL)] | None = None
    key: bytes | None = None
    all: bool = False
    released_by: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)] | None = None
    released_at: Long = 0
    v: int = 1

    @property
    def released(self) -> bool:
        """Whether it is over before its end."""
        return self.released_by is not None

    @property
    def what(self) -> str:
        """What it holds, for people."""
        return self._named(None if self.key is None else shown_key(self.key))

    @property
    def what_without_key(self) -> str:
        """What it holds, for readers who may not see keys."""
        return self._named(None if self.key is None else "(hidden)")

    def _named(self, key: str | None) -> str:
        if self.all:
            return "all"
        named = self.selectors | ({} if key is None else {"key": key})
        return " ".join(f"{name}={value}" for name, value in named.items())

    @property
    def selectors(self) -> dict[str, Any]:
        """What it names, by the names in SELECTORS."""
        return {name: value for name in SELECTORS if (value := getattr(self, name)) is not None}


class HoldHeard(msgspec.Struct, frozen=True):
    """The hold with this id, or its release. `record` is None if it was deleted: then nothing is held by it."""

    id: str
    record: HoldRecord | None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(HoldRecord)


class Selects(Protocol):
    """A hold, as far as it says what is held; None: any."""

    @property
    def topic(self) -> str | None: ...
    @property
    def level(self) -> str | None: ...
    @property
    def key(self) -> bytes | None: ...


def holds_record(hold: Selects, topic: str, level: str, key: bytes | None) -> bool:
    """Return whether a hold is for records of a main topic, a level and a key. Whoever asks what is held asks this."""
    return hold.topic in (None, topic) and hold.level in (None, level) and hold.key in (None, key)


def hold_key(ident: str) -> bytes:
    """Return the key of the hold with this id."""
    return HOLD + ident.encode()


def render_hold(record: HoldRecord) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def read_hold(key: bytes, value: bytes | None) -> HoldHeard | str:
    """Return what a record with the key of a hold says, or why it says nothing. Never raises."""
    ident = key[len(HOLD) :].decode("ascii", errors="replace")
    if not IDENT.fullmatch(ident):
        return f"the key hold/{shown_key(key[len(HOLD) :])} names no hold"
    record = None if value is None else parse_hold(value)
    return f"hold {ident}: {record}" if isinstance(record, str) else HoldHeard(ident, record)


def parse_hold(value: bytes) -> HoldRecord | str:
    """Return a hold, or why it is none, as one sentence for people. Never raises."""
    record = versions.decoded(_DECODER, value, "the hold is")
    if isinstance(record, str):
        return record
    return fault_of_hold(record) or record


def fault_of_hold(record: HoldRecord) -> str:
    """Return why a hold cannot be obeyed, whatever the time is; empty if it can."""
    if record.all == bool(record.selectors):
        return f"the hold must name a {', a '.join(SELECTORS)}, or all"
    if not record.since < record.until <= record.since + LONGEST_HOLD_MS:
        return "the hold must end after it begins, and last 7 d at most"
    texts = (record.why, record.who, record.topic or "", record.level or "", record.released_by or "")
    if not all(text.isprintable() for text in texts):
        return "the hold has text that cannot be printed"
    if record.key is not None and len(record.key) > LONGEST_KEY:
        return f"the hold has a key of more than {LONGEST_KEY} bytes"
    return ""


def lasts_too_long(record: HoldRecord, wall: int) -> bool:
    """Return whether at this time (epoch ms) a hold has more than 7 d to its end, as one of another clock."""
    return record.until - wall > LONGEST_HOLD_MS + CLOCKS_DIFFER_MS


def read_level(text: str) -> str:
    """Return a level as the sidecar names it. Raises ValueError, with a sentence, if it is none."""
    if text in WORDS:
        return text
    try:
        return render_duration(parse_duration(text))
    except ValueError:
        raise ValueError(f"a level is {', '.join(WORDS)}, or a delay like 10m") from None


def read_key(text: str | None, encoded: str | None) -> bytes | None:
    """Return a key that is given as text, or in Base64; None if neither is. Raises ValueError, with a sentence."""
    if text is not None and encoded is not None:
        raise ValueError("a key is given as text or in Base64, not both")
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return None if text is None else text.encode()
    except ValueError:
        raise ValueError("the key is not Base64, or no text of Unicode") from None


def shown_key(key: bytes) -> str:
    """Return a key for people, cut: it may hold anything."""
    return repr(key[:40])[2:-1] + ("…" if len(key) > 40 else "")
