"""Format texts, times and lengths of any origin for a page. Pure.

A record may hold anything. Characters that are not printable, or that change the direction of writing, are written as
Python escapes. HTML is escaped where a page is rendered, not here.
"""

from __future__ import annotations

from sidecar.clock import utc
from sidecar.printable import printable
from topics.durations import render_duration

SECOND, DAY = 1_000, 86_400_000


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
