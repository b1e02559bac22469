"""When a service says that a record is worth no retry any more (contract 2.12). Pure; times are epoch ms."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from reconsume.topics.durations import parse_duration

EXPIRED = "expired"
"""The reason of a dead letter that would have been due again after its age, or after the time that its service gave."""
LATEST = 10**16 - 1
"""The latest time that RETRY_EXPIRES_AT can say: 16 digits, the year 318 857."""


class Expiry(msgspec.Struct, frozen=True):
    """What a service said: a time `at`, or else `after` ms from its answer."""

    at: int | None = None
    after: int = 0

    def time(self, now: int, speed: int = 1) -> int:
        """Return the time that an answer says which came at `now`. `speed`: what a duration is divided by."""
        return max(0, min(now + self.after // speed if self.at is None else self.at, LATEST))


LONGEST_TEXT = 64
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_expiry(text: str) -> Expiry:
    """Return what `2026-11-26T18:00:00Z` (RFC 3339) or a duration such as `6h` says. Raises ValueError."""
    if len(text) <= LONGEST_TEXT and RFC_3339.fullmatch(text):
        return Expiry(at=max(0, int(datetime.fromisoformat(text.upper()).timestamp() * 1000)))
    if len(text) <= LONGEST_TEXT and text[:1].isdecimal():
        return Expiry(after=parse_duration(text))
    raise ValueError("must be a time such as 2026-11-26T18:00:00Z, or a duration such as 6h")
