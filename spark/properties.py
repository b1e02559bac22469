"""Java properties, the form of Kafka's own client files: how a cluster's address and secrets reach the job.

A file, because a command line is shown by `ps`. Pure; who reads the file is `__main__`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
BLANKS = " \t\f"
SPLIT = re.compile(r"((?:\\.|[^\\=: \t\f])+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+)(.*)", re.DOTALL)
"""A key ends at the first `=`, `:` or white space that no backslash stands before. White space at the end is kept, as
Java keeps it, and a value may be empty: so Kafka's client is told not to look at a broker's name."""


def parse_properties(text: str) -> dict[str, str]:
    """The properties in `text`, the last of a name; ValueError naming a line that is none."""
    found: dict[str, str] = {}
    for number, line in logical_lines(text):
        match = SPLIT.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not `name=value`")
        found[unescaped(match[1])] = unescaped(match[2])
    return found


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The number of the first line, and the text, of each property; a backslash at an end continues it."""
    begun, held = 0, ""
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(BLANKS)
        if not held and (not line or line[0] in "#!"):
            continue
        begun = begun if held else number
        if (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            held += line[:-1]
        else:
            yield begun, held + line
            held = ""
    if held:
        yield begun, held


def unescaped(text: str) -> str:
    """The text with its backslashes taken out."""
    return ESCAPED.sub(lambda match: character(match[1]), text)


def character(escape: str) -> str:
    """What stands behind a backslash."""
    return chr(int(escape[1:], 16)) if len(escape) == 5 else ESCAPES.get(escape, escape)
