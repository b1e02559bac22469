"""How texts, times and lengths from anywhere are written on a page. Pure.

A record may hold anything: signs that are not printable, or that turn the direction of a line, are written as Python
writes them. HTML is escaped where a page is rendered, not here.
"""

from __future__ import annotations

from datetime import UTC, datetime

from topics.durations import render_duration

SECOND, DAY = 1_000, 86_400_000


def plain(text: str) -> str:
    """The text, with what is not printable escaped."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def cut(text: str, most: int) -> str:
    """At most so many characters of it."""
    text = plain(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def moment(at: int) -> str:
    """Epoch ms in UTC; nothing for what is no time."""
    if at <= 0:
        return ""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # a record may say anything
        return str(at)


def length(milliseconds: int) -> str:
    """A length of time in few words: in ms below a second, else in its two greatest units."""
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
    """How long ago (both epoch ms)."""
    return "never" if at <= 0 else f"{length(max(0, now - at) // SECOND * SECOND) if now - at >= SECOND else '0s'} ago"
