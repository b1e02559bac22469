"""The records that a service asks to be written when its record is done (contract 1.12). Pure.

They go in the transaction that has the record's progress. Which topics they may go to is the operator's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from reconsume.topics.attempt import Attempt
from reconsume.topics.dead_letter_headers import DEAD_LETTER
from reconsume.topics.names import LEGAL_NAMES
from reconsume.topics.retry_headers import ID, OURS, RESERVED, Headers
from reconsume.topics.transition_records import Copy

OUTPUT_REFUSED = "output-refused"
"""The reason of a failure whose answer asked for a record that may not, or cannot, be written."""
RETRY_OUTPUT_OF = "RETRY_OUTPUT_OF"
"""The attempt that asked for a record, `<origin id>/<redrives>/<times>#<n>`, with a cycle
`<origin id>/<cycle>.<redrives>/<times>#<n>`: readers recognise a repeated one by it."""
RETRY_OUTPUT_BY = "RETRY_OUTPUT_BY"
"""The group whose attempt it was: two groups may consume one topic, and write to one topic."""
STAMPS = frozenset({RETRY_OUTPUT_OF, RETRY_OUTPUT_BY})
_ATTEMPT = re.compile(
    rb"(?P<id>%s)/(?:([1-9][0-9]{0,5})\.)?(0|[1-9][0-9]{0,5})/(0|[1-9][0-9]{0,5})#(0|[1-9][0-9]{0,5})" % ID.pattern
)
TRACEPARENT = "traceparent"
RESERVED_TOPICS = ("*-RETRY", "*-RETRY-*", "*-DLQ", "*-ORDERED", "*-ORDERED-*", "__*")
"""Names of topics that take no outputs, whoever names them: those of a group, this one or another, and Kafka's own."""
OUR_HEADERS = OURS | DEAD_LETTER
"""Headers that no output may bring, next to all that begin with `RETRY_`: readers believe that we wrote them."""


def is_reserved(topic: str) -> bool:
    """Return whether a topic, or every topic of a glob, belongs to a group or to Kafka (contract 1.12)."""
    return any(fnmatchcase(topic, pattern) for pattern in RESERVED_TOPICS)


def is_our_header(name: str) -> bool:
    """Return whether an output may not bring a header of this name.

    It may bring the two stamps, which `stamped` replaces: a record that was itself an output has them, and its consumer
    may pass on all headers.
    """
    return name not in STAMPS and (name in OUR_HEADERS or name.startswith(RESERVED))


def literal_start(name: str) -> str:
    """Return the beginning of a glob up to its first wildcard; a name without one is returned whole."""
    return re.split(r"[*?\[]", name, maxsplit=1)[0]


class OutputTopics(Protocol):
    """What decides whether an output may be written to a topic."""

    def fault(self, topic: str, partition: int | None) -> str:
        """Return why no record may be written to a topic, or to this partition of it; empty if one may.

        `partition`: None if the key decides.
        """


class AllowedOutputs(msgspec.Struct, frozen=True):
    """The topics that the operator allows for outputs: `names` and globs (`invoices-*`). `mains`: topics that no glob
    covers, lest a group feeds itself by mistake."""

    names: tuple[str, ...]
    mains: tuple[str, ...] = ()

    @property
    def has_glob(self) -> bool:
        """Whether one of the names is a glob."""
        return any(literal_start(name) != name for name in self.names)

    def fault(self, topic: str, partition: int | None) -> str:
        """Return why the operator allows no record in a topic; empty if the operator does. The topic may be missing."""
        del partition  # only Kafka knows which ones a topic has
        if topic in LEGAL_NAMES and self.allows(topic):
            return ""
        return f"deliver.outputs does not allow the topic {topic[:249]!r}"

    def allows(self, topic: str) -> bool:
        """Return whether a record may go to a topic."""
        if is_reserved(topic):
            return False
        if topic in self.names:
            return True
        return topic not in self.mains and any(fnmatchcase(topic, name) for name in self.names)


class OutputOf(NamedTuple):
    """What the stamps of a record say: the group, the attempt that asked for it, and its number in that answer."""

    group: str
    id: str
    attempt: Attempt
    number: int


def output_of(headers: Headers) -> OutputOf | None:
    """Return what the stamps of a record say; None unless each is there once and in its form."""
    stamps = [header for header in headers if header[0] in STAMPS]
    values = dict(stamps)
    attempt = _ATTEMPT.fullmatch(values.get(RETRY_OUTPUT_OF) or b"")
    group = values.get(RETRY_OUTPUT_BY)
    if len(stamps) != len(STAMPS) or attempt is None or group is None:
        return None
    cycle, redrives, times, number = (int(count or 0) for count in attempt.groups()[-4:])
    return OutputOf(group.decode(errors="replace"), attempt["id"].decode(), Attempt(cycle, redrives, times), number)


def stamped(
    outputs: Iterable[Copy], group: str, record_id: str, attempt: Attempt, traceparent: bytes | None
) -> tuple[Copy, ...]:
    """Return the records with the attempt that asked for them, and with its trace where they have none."""
    of, by = f"{record_id}/{attempt.series}/{attempt.times}", (RETRY_OUTPUT_BY, group.encode())
    copies = []
    for number, output in enumerate(outputs):
        headers = [header for header in output.headers if header[0] not in STAMPS]
        headers += ((RETRY_OUTPUT_OF, f"{of}#{number}".encode()), by)
        if traceparent is not None and all(name.lower() != TRACEPARENT for name, _ in headers):
            headers.append((TRACEPARENT, traceparent))
        copies.append(replace(output, headers=headers))
    return tuple(copies)
