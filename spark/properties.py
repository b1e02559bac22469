"""Parse Java properties, the format of Kafka's client files, by which a cluster's address and secrets reach the job.

They come in a file because `ps` shows a command line. Pure functions; `__main__` reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
BLANKS = " \t\f"
SPLIT = re.compile(r"((?:\\.|[^\\=: \t\f])+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+)(.*)", re.DOTALL)
"""A key ends at the first `=`, `:` or white space without a backslash before it.

White space at the end of a value is kept, as in Java. A value may be empty: with an empty
`ssl.endpoint.identification.algorithm` Kafka's client does not check a broker's host name.
"""


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in `text`; if a name is repeated, the last one counts.

    Raises ValueError, with the line's number, if a line is not a property.
    """
    properties: dict[str, str] = {}
    for number, line in logical_lines(text):
        match = SPLIT.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not `name=value`")
        properties[unescaped(match[1])] = unescaped(match[2])
    return properties


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the text of each property; a backslash at the end of a line continues it."""
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
    """Return the text with its escape sequences replaced by their characters."""
    return ESCAPED.sub(lambda match: character(match[1]), text)


def character(escape: str) -> str:
    """Return the character that an escape sequence stands for; `escape` is the text behind the backslash."""
    return chr(int(escape[1:], 16)) if len(escape) == 5 else ESCAPES.get(escape, escape)
