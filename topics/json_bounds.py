"""Limit the size and depth of a JSON value before it is parsed. Any writer to one topic can write such values.

Python's parsers accept nesting as deep as the stack. Code that walks the values afterwards, copies them or prints them,
accepts less. A value between the two limits would break its readers far from here. The records of the policy topic have
a limit of their own.
"""

from __future__ import annotations

import re

DEEPEST = 4
"""Objects and lists inside each other, including the outermost."""

# Strings first, so that brackets inside them are not counted. Possessive: no text causes it to backtrack.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def excess(value: bytes, largest: int, deepest: int = DEEPEST) -> str:
    """Return why a value must not be parsed, as one sentence for people. Empty if it may be parsed."""
    if len(value) > largest:
        return f"the value has {len(value)} bytes, and at most {largest} are read"
    if nests_beyond(value, deepest):
        return f"the value is nested deeper than {deepest} levels"
    return ""


def nests_beyond(value: bytes, most: int) -> bool:
    """Whether objects and lists are nested more than `most` deep, in JSON or in a text that resembles it."""
    if value.count(b"{") + value.count(b"[") <= most:
        return False
    depth = 0
    for token in _TOKENS.findall(value):
        if token in b"[{":
            depth += 1
            if depth > most:
                return True
        elif token in b"]}":
            depth -= 1
    return False
