"""Read the fields beside a verdict's word, and `Retry-After`: leniently, and within bounds. Pure."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import Expiry, parse_expiry
from reconsume.topics.reasons import LONGEST_TEXT, one_line

USUAL_THROTTLE_MS = 1_000

LONGEST_FIELD = 32
LONGEST_FIELD_READ = 4 * LONGEST_TEXT
"""Characters of a reason that are looked at."""
# A class goes into metrics and into a header: a word, never a sentence.
REASON_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECONDS = re.compile(r"[0-9]{1,18}")
LEVEL = re.compile(r"-?[0-9]{1,4}")


def delay_of(field: Any) -> int | None:
    """Return the delay in milliseconds; None (the ladder) if it is not a duration. The core checks its range."""
    if not isinstance(field, str) or len(field) > LONGEST_FIELD:
        return None
    try:
        return parse_duration(field)
    except ValueError:
        return None


def level_of(field: Any) -> int | None:
    """Return the level; None (the ladder) if it is not a whole number. The core checks its range."""
    if isinstance(field, str) and LEVEL.fullmatch(field) is not None:
        return int(field)
    if isinstance(field, int) and not isinstance(field, bool) and -9_999 <= field <= 9_999:
        return field
    return None


def expiry_of(field: Any) -> Expiry | None:
    """Return when the record is worth no retry any more; None (never) if it is neither a time nor a duration."""
    if not isinstance(field, str):
        return None
    try:
        return parse_expiry(field)
    except ValueError:
        return None


def reason_of(field: Any) -> tuple[str, str]:
    """Return the reason's class and text: a single word is a class, anything longer is text for people."""
    if not isinstance(field, str) or not field:
        return "", ""
    if REASON_CLASS.fullmatch(field) is not None:
        return field, ""
    return "", one_line(field[:LONGEST_FIELD_READ])


def retry_after_ms(value: bytes, wall: int) -> int:
    """Return the ms of a `Retry-After`, in seconds or as an HTTP date; the usual pause if it is neither."""
    text = value.decode("latin-1").strip()
    if SECONDS.fullmatch(text) is not None:
        return int(text) * 1000
    try:
        date = parsedate_to_datetime(text)
        return int((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() * 1000) - wall
    except (ValueError, TypeError, OverflowError):
        return USUAL_THROTTLE_MS
