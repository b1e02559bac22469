"""Text of any origin, made safe for a terminal, a log line or a page."""

from __future__ import annotations

import re

STALE = 10_000
"""ms after which what a heartbeat said is given with its age."""
_ERROR_OBJECT = re.compile(r'KafkaError\{[^"{}]*,str="(.*?)"\}')


def without_error_objects(text: str) -> str:
    """Return a text in which each error of the Kafka client, written as `KafkaError{…}`, is only its sentence."""
    return _ERROR_OBJECT.sub(r"\1", text) if "KafkaError{" in text else text


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: `1 partition`, `2 retries`, `2 partitions or topics`."""
    return f"{count} {noun_of(count, noun)}"


def noun_of(count: int, noun: str) -> str:
    """Return the form of a noun that goes with a count, for pages that show the count apart from it."""
    if count == 1:
        return noun
    if " or " in noun:
        return " or ".join(noun_of(count, one) for one in noun.split(" or "))
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"


def ago(milliseconds: float) -> str:
    """Return a length of time as text for people, in its two largest units."""
    seconds = max(0, round(milliseconds / 1000))
    for unit, size, below, smaller in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size}{unit}{rest}{below}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


def as_of(age_ms: int) -> str:
    """Return how old what was said is, to be appended to it; empty if it is so fresh that this does not matter."""
    return f" (as of {ago(age_ms)} ago)" if age_ms >= STALE else ""


def printable(text: str) -> str:
    """Return the text with characters that are not printable written as Python escapes."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def printable_json(line: str) -> str:
    """Return one line of JSON with characters that are not printable written as JSON escapes: the same value.

    JSON itself leaves direction marks and C1 controls as they are, and a terminal would obey them.
    """
    return line if line.isprintable() else "".join(map(_escaped, line))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    data = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at] << 8 | data[at + 1]:04x}" for at in range(0, len(data), 2))
