"""A record as it was read, and as the handler gets it. Pure: what our headers mean is asked of `topics`."""

from __future__ import annotations

from typing import NamedTuple

from spark.consumer.rules import Rules
from topics.headers import BadHeader, Headers, RetryState, parse_retry_headers, without_ours
from topics.headers_fast import parse_rendered

REPLACED = "\ufffd"
"""What a client puts for bytes that are not UTF-8: a header key that holds it is not what was written."""
UNREADABLE = "headers-unreadable"


class Read(NamedTuple):
    """One row of the source: where it lay, and what. `timestamp` is epoch ms, −1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> str:
        """`topic:partition:offset` of this copy."""
        return f"{self.topic}:{self.partition}:{self.offset}"


class ParsedRecord(NamedTuple):
    """A row and what its headers say: `life` is None on a main topic, where ours mean nothing.

    `fault` says why it may not be handled; empty for a good record.
    """

    row: Read
    life: RetryState | None
    fault: str = ""

    @property
    def id(self) -> str:
        """ORIGIN_MESSAGE_ID."""
        return self.row.place if self.life is None else self.life.id

    @property
    def times(self) -> int:
        """RECONSUMETIMES: how often it has been retried."""
        return 0 if self.life is None else self.life.times


class Record(NamedTuple):
    """What a handler gets. Topic, partition, offset and timestamp (epoch ms, −1 for none) are those of the first copy.

    `id` with `times` and `redrives` is one attempt: the same again is a duplicate. `headers` are the record's own.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    times: int
    redrives: int


def parse(row: Read, rules: Rules, now: int) -> ParsedRecord:
    """Read what a record's headers say, as of `now` (epoch ms). Never raises."""
    if any(REPLACED in key for key, _ in row.headers):
        return ParsedRecord(row, None, UNREADABLE)
    if row.topic in rules.topics:
        return ParsedRecord(row, None)
    latest = rules.latest_due(now)
    life = parse_rendered(row.headers, rules.topics, latest) or parse_retry_headers(row.headers, rules, latest)
    if isinstance(life, BadHeader):
        return ParsedRecord(row, None, f"bad-header: {life.text}")
    return ParsedRecord(row, life)


def for_handler(taken: ParsedRecord) -> Record:
    """The record for its handler."""
    row, life = taken.row, taken.life
    own = without_ours(row.headers)
    if life is None:
        return Record(row.place, *row[:6], own, 0, 0)
    topic, partition, offset = life.id.rsplit(":", 2)
    first = (life.id, topic, int(partition), int(offset), life.timestamp)
    return Record(*first, row.key, row.value, own, life.times, life.redrives)
