"""Mask secrets in texts and URLs, before they are logged, shown or raised."""

from __future__ import annotations

import re

MASK = "********"
_WORD = re.compile(r"\S+")
_OPENING, _CLOSING = "'\"([<{`", "'\")]>}`,;:."


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
