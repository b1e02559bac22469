"""Format texts, times and lengths of any origin for a page. Pure.

A record may hold anything. Characters that are not printable, or that change the direction of writing, are written as
Python escapes. HTML is escaped where a page is rendered, not here.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.sidecar.clock import utc
from reconsume.sidecar.dlq.preview import BEGINNING, snippet
from reconsume.sidecar.printable import printable
from reconsume.topics.durations import render_duration

SECOND, DAY = 1_000, 86_400_000
LAST = 253_402_300_800_000
"""ms of the year 10000, which no browser reads as a time."""
SNIPPET = 160
"""Characters that a list shows of a key or a value."""


def cut(text: str, most: int) -> str:
    """Return the text, cut to at most `most` characters."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def moment(at: int) -> str:
    """Format epoch ms in UTC; an empty text for 0 or less, which means no time."""
    return utc(at, "%Y-%m-%d %H:%M:%S") if at > 0 else ""


def length(milliseconds: int) -> str:
    """Format a length of time in few words: in ms below a second, else in its two largest units."""
    if milliseconds < 0:
        return f"-{length(-milliseconds)}"
    if milliseconds < SECOND:
        return f"{milliseconds}ms"
    if milliseconds >= 10 * DAY:
        return f"{milliseconds // DAY}d"
    size = next((size for size in (DAY, 3_600_000, 60_000) if milliseconds >= size), SECOND)
    smaller = {DAY: 3_600_000, 3_600_000: 60_000}.get(size, SECOND)
    return render_duration(milliseconds // smaller * smaller)


def ago(at: int, now: int) -> str:
    """Format the time from `at` to `now` (both epoch ms)."""
    return "never" if at <= 0 else f"{length(max(0, now - at) // SECOND * SECOND) if now - at >= SECOND else '0s'} ago"


def due(at: int, now: int) -> str:
    """Format when something is due, seen from `now` (both epoch ms). What waits and is not due is parked."""
    if at <= 0:
        return "parked"
    if at - now >= SECOND:
        return f"due in {length((at - now) // SECOND * SECOND)}"
    return "due now" if now - at < SECOND else f"overdue by {length((now - at) // SECOND * SECOND)}"


def iso(at: int) -> str:
    """Format epoch ms as a browser's script reads it; an empty text for what is no time."""
    return utc(at, "%Y-%m-%dT%H:%M:%SZ") if 0 < at < LAST else ""


def fact(value: object) -> str:
    """Format a value of an action, of a policy or of the audit log in words: no brackets, no quotes of a programmer."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {_field(name, one)}" for name, one in value.items())
        case list() | tuple():
            return " or ".join(map(fact, value))
        case None:
            return "none"
        case _:
            return printable(str(value))


def _field(name: str, value: object) -> str:
    """Format a field of a filter; its times are epoch ms."""
    return f"{moment(value)} UTC" if name in ("since", "until") and isinstance(value, int) else fact(value)


def begins(data: bytes | None) -> str:
    """Return how a value that a list has kept begins, in few words."""
    shown = snippet(data, SNIPPET)
    more = data is not None and len(data) >= BEGINNING and not shown.endswith("…")
    return f"{shown}…" if more else shown
