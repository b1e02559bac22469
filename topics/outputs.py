"""The records that a service asks to be written when its record is done (contract 1.12). Pure.

They go in the transaction that has the record's progress. Which topics they may go to is the operator's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from topics.copies import Copy

OUTPUT_REFUSED = "output-refused"
"""The reason of a failure whose answer asked for a record that may not, or cannot, be written."""
RETRY_OUTPUT_OF = "RETRY_OUTPUT_OF"
"""The attempt that asked for a record, `<origin id>/<redrives>/<times>#<n>`: readers recognise a repeated one by it."""
TRACEPARENT = "traceparent"
RESERVED = ("*-RETRY", "*-RETRY-*", "*-DLQ", "*-ORDERED", "*-ORDERED-*")
"""Names of topics that no glob covers: those of a group, of ours or of another."""


def literal_start(name: str) -> str:
    """Return the beginning of a glob up to its first wildcard; a name without one is returned whole."""
    return re.split(r"[*?\[]", name, maxsplit=1)[0]


class OutputTopics(msgspec.Struct, frozen=True):
    """Where records may go: `names` and globs (`invoices-*`). `mains`: topics that no glob covers, lest a group feeds
    itself by mistake."""

    names: tuple[str, ...]
    mains: tuple[str, ...] = ()

    def allows(self, topic: str) -> bool:
        """Return whether a record may go to a topic."""
        if topic in self.names:
            return True
        if topic in self.mains or any(fnmatchcase(topic, name) for name in RESERVED):
            return False
        return any(fnmatchcase(topic, name) for name in self.names)


def stamped(
    outputs: Iterable[Copy], record_id: str, redrives: int, times: int, traceparent: bytes | None
) -> tuple[Copy, ...]:
    """Return the records with the attempt that asked for them, and with its trace where they have none."""
    attempt = f"{record_id}/{redrives}/{times}"
    copies = []
    for number, output in enumerate(outputs):
        headers = [header for header in output.headers if header[0] != RETRY_OUTPUT_OF]
        headers.append((RETRY_OUTPUT_OF, f"{attempt}#{number}".encode()))
        if traceparent is not None and all(name.lower() != TRACEPARENT for name, _ in headers):
            headers.append((TRACEPARENT, traceparent))
        copies.append(replace(output, headers=headers))
    return tuple(copies)
