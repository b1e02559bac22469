"""Reasons of failures: `class` or `class: text`, bounded and printable (RETRY_REASON)."""

from __future__ import annotations

import functools

LONGEST_REASON = 1024
"""Bytes of UTF-8. A dead letter carries the reason twice, and it must stay far below the 16 KiB that we allow for our
headers."""
LONGEST_CLASS = 64
"""Characters of a class: as many as a verdict may give. The class is part of the key of the sums, which readers bound
(`view_record.LONGEST_KEY`), and a relay's service or a Spark handler may write a RETRY_REASON that is all one class."""


LONGEST_TEXT = 200
"""Characters of the text behind a class, so at most 800 bytes of UTF-8."""


@functools.lru_cache(maxsize=256)  # a service fails often, and in few ways
def reason_text(reason_class: str, text: str) -> str:
    """Return RETRY_REASON, `class` or `class: text`, in at most 1 KiB of UTF-8 and on one line."""
    text = one_line(text)
    return shortened(f"{reason_class}: {text}" if text else reason_class)


@functools.lru_cache(maxsize=256)
def reason_class(reason: str) -> str:
    """Return the class of a RETRY_REASON without the text. Events and metrics carry the class alone."""
    return reason.partition(": ")[0][:LONGEST_CLASS]


@functools.lru_cache(maxsize=256)
def text_of(reason: str) -> str:
    """Return the text of a RETRY_REASON behind its class, in at most LONGEST_TEXT characters; empty if it has none."""
    return one_line(reason.partition(": ")[2])


def one_line(text: str) -> str:
    """Return `text` on one line, in at most LONGEST_TEXT characters.

    Every unprintable character counts as a space, and spaces in a row are one.
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:LONGEST_TEXT].rstrip()


def shortened(text: str) -> str:
    """Return `text` in at most 1 KiB of UTF-8, cut between characters.

    Every unprintable character is replaced by a space.
    """
    if not text.isprintable():  # false for controls, lone surrogates, and marks that reverse a terminal's text
        text = "".join(char if char.isprintable() else " " for char in text[:LONGEST_REASON])
    data = text.encode()
    return text if len(data) <= LONGEST_REASON else data[:LONGEST_REASON].decode(errors="ignore")
