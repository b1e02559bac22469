"""Show the beginning of a value that may hold any bytes, as JSON, text or hexadecimal digits.

Unprintable characters stay in the result. Characters that a terminal or a browser would obey are made harmless where
the result is printed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import msgspec

from reconsume.topics.json_bounds import nests_beyond

BEGINNING = 512
"""Bytes of a key or a value that a list keeps to show how it begins."""
SHOWN = 4_096
"""Characters that are shown of a value; bytes if the value is not text."""
PARSED = 64 * 1024
"""Bytes. A longer value is not tried as JSON."""
DEEPEST = 32
"""Levels of JSON that are indented. Deeper nesting would give only blanks, and megabytes of them."""


def one_line(data: bytes | None) -> str:
    """Return the bytes as text for one line of output."""
    if data is None:
        return "(null)"
    try:
        return data.decode()[:SHOWN] or "(empty)"
    except UnicodeDecodeError:
        return f"0x{data[:64].hex()}{'…' if len(data) > 64 else ''}"


def snippet(data: bytes | None, most: int) -> str:
    """Return how the bytes begin, as text for one line of at most `most` characters.

    The bytes may be cut inside a character.
    """
    if not data:
        return one_line(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as fault:
        if fault.reason != "unexpected end of data":
            return cut_to(f"0x{data[:most].hex()}", most)
        text = data[: fault.start].decode()
    return cut_to(" ".join(text.split()), most)


def cut_to(text: str, most: int) -> str:
    """Return the text, cut to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def preview(value: bytes | None) -> dict[str, Any]:
    """Return a value's kind (null, empty, json, text, hex), its length, its hash and its beginning."""
    kind, shown = looked_at(value)
    digest = None if value is None else hashlib.sha256(value).hexdigest()
    cut = len(shown) > SHOWN
    return {"kind": kind, "bytes": len(value or b""), "sha256": digest, "cut": cut, "shown": shown[:SHOWN]}


def looked_at(value: bytes | None) -> tuple[str, str]:
    """Return the kind of a value, and its text."""
    if not value:
        return ("null" if value is None else "empty"), ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "hex", "\n".join(value[at : at + 16].hex(" ") for at in range(0, min(len(value), SHOWN), 16))
    if len(value) <= PARSED and text.lstrip()[:1] in ("{", "[") and not nests_beyond(value, DEEPEST):
        with suppress(msgspec.DecodeError):  # it is text
            # Numbers, strings and duplicate keys stay as they are written.
            return "json", msgspec.json.format(text, indent=2)
    return "text", text
