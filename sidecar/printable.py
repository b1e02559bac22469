"""Text of any origin, made safe for a terminal, a log line or a page."""

from __future__ import annotations

import re

MASK = "********"
_WORD = re.compile(r"\S+")
_OPENING, _CLOSING = "'\"([<{`", "'\")]>}`,;:."


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: `1 partition`, `2 partitions`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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


def url_without_secrets(url: str) -> str:
    """Return a URL with its user, password, query and fragment masked, also if it is no valid one.

    The user ends at the last @, because a password may contain @, slashes and question marks.
    """
    of_a_path = url.startswith(("unix:", "/")) and not url.startswith("//")
    begin = url.find("//") + 2 if "//" in url else 0
    end = -1 if of_a_path else url.rfind("@")
    masked = f"{url[:begin]}{MASK}{url[end:]}" if begin <= end else url
    cut = min((at for sign in "?#" if (at := masked.find(sign)) >= 0), default=len(masked) - 1)
    return masked if cut + 1 >= len(masked) else f"{masked[: cut + 1]}{MASK}"


def text_without_secrets(text: str) -> str:
    """Return a text with the secrets of its URLs masked, as `url_without_secrets` does. A path with a query counts."""
    return _WORD.sub(_masked, text) if "/" in text else text


def _masked(word: re.Match[str]) -> str:
    inner = word[0].lstrip(_OPENING)
    bare = inner.rstrip(_CLOSING)
    if "//" not in bare and not bare.startswith(("/", "unix:/")):
        return word[0]
    return word[0][: len(word[0]) - len(inner)] + url_without_secrets(bare) + inner[len(bare) :]
