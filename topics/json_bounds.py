"""How large and how deep a JSON value may be that anybody with rights to one topic can write: looked at before parsing.

Python's parsers take nesting as deep as the stack is, and what walks their values afterwards, copies them or prints
them, takes less: a value between the two would break its readers far from here. Ours are nested three deep at most.
"""

from __future__ import annotations

import re

DEEPEST = 4
"""Objects and lists inside each other, the whole one included."""

# Texts first, so that what stands in them is not counted. Possessive: no text makes it look twice.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def excess(value: bytes, largest: int) -> str:
    """Return why a value is not to be parsed, as one sentence for people; empty when it may be."""
    if len(value) > largest:
        return f"the value has {len(value)} bytes, and at most {largest} are read"
    if nests_beyond(value, DEEPEST):
        return f"the value is nested deeper than {DEEPEST} levels"
    return ""


def nests_beyond(value: bytes, most: int) -> bool:
    """Tell whether objects and lists stand in each other more than `most` deep, in JSON or what pretends to be."""
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
