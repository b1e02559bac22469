"""A safe look at bytes that may be anything: JSON, text or hexadecimal digits, and only the beginning.

Unprintable signs stay in: what a terminal or a browser would obey is made harmless where it is printed.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from topics.json_bounds import nests_beyond

SHOWN = 4_096
"""Signs, or bytes of what is no text, that are shown of a value."""
PARSED = 64 * 1024
"""Bytes of a value that is still tried as JSON."""
DEEPEST = 32
"""Levels of JSON that are indented: what is nested deeper would be all blanks, and megabytes of them."""
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def one_line(data: bytes | None) -> str:
    """Bytes on one line."""
    if data is None:
        return "(null)"
    try:
        return data.decode()[:SHOWN] or "(empty)"
    except UnicodeDecodeError:
        return f"0x{data[:64].hex()}{'…' if len(data) > 64 else ''}"


def preview(value: bytes | None) -> dict[str, Any]:
    """What a value looks like: its kind (null, empty, json, text, hex), length, hash, and the beginning of it."""
    kind, shown = looked_at(value)
    digest = None if value is None else hashlib.sha256(value).hexdigest()
    cut = len(shown) > SHOWN
    return {"kind": kind, "bytes": len(value or b""), "sha256": digest, "cut": cut, "shown": shown[:SHOWN]}


def looked_at(value: bytes | None) -> tuple[str, str]:
    """The kind of a value, and its text."""
    if not value:
        return ("null" if value is None else "empty"), ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "hex", "\n".join(value[at : at + 16].hex(" ") for at in range(0, min(len(value), SHOWN), 16))
    if len(value) <= PARSED and text.lstrip()[:1] in ("{", "[") and not nests_beyond(value, DEEPEST):
        try:
            json.loads(text, parse_int=str)  # of a number with ten thousand digits it would not make an int
            return "json", indented(text)
        except ValueError:
            pass
    return "text", text


def indented(text: str) -> str:
    """Good JSON, a line a member. Its numbers, strings and doubled keys stay as they are written."""
    out, depth, before = list[str](), 0, ":"
    for token in TOKEN.findall(text):
        opened, closes = before in ("{", "["), token in "}]"
        depth -= closes
        if before == "," or opened is not closes:
            out.append("\n" + "  " * depth)
        out.append(": " if token == ":" else token)
        depth += token in "{["
        before = token
    return "".join(out)
