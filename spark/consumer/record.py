"""A record as it was read, and as the handler gets it. Pure; `topics` defines the meaning of the retry headers."""

from __future__ import annotations

from typing import NamedTuple

from reconsume.spark.consumer.rules import Rules
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.partition import Partition
from reconsume.topics.render_headers import without_ours
from reconsume.topics.retry_headers import BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.transitions import UNREADABLE

REPLACED = "\ufffd"
"""The character that a client puts for bytes that are not UTF-8. A header key that contains it is not the written
key."""


class Read(NamedTuple):
    """One row of the source: position and content of a copy. `timestamp` is epoch ms, −1 if there is none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class ParsedRecord(NamedTuple):
    """A row and its retry state, as `topics.transitions` takes it. `retry_state` is None on a main topic, where retry
    headers are ignored.

    `headers` is None if a header key cannot be read. `fault` is the reason why the record may not be handled; an empty
    text for a valid record.
    """

    source: Partition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    retry_state: RetryState | None = None
    fault: str = ""
    failed_at_ms: int = 0
    """0: a job never tries a record again in place."""

    @property
    def id(self) -> str:
        """ORIGIN_MESSAGE_ID."""
        return (
            f"{self.source.topic}:{self.source.number}:{self.offset}"
            if self.retry_state is None
            else self.retry_state.id
        )

    @property
    def times(self) -> int:
        """RECONSUMETIMES: the number of retries so far."""
        return 0 if self.retry_state is None else self.retry_state.times

    @property
    def cycle(self) -> int:
        """RETRY_CYCLE: how many times the position of its partition was reset; 0 on a main topic."""
        return 0 if self.retry_state is None else self.retry_state.cycle


class Record(NamedTuple):
    """A record as a handler gets it.

    - `id` (str): ORIGIN_MESSAGE_ID, `topic:partition:offset` of the first copy.
    - `topic` (str), `partition` (int), `offset` (int): the position of the first copy.
    - `timestamp` (int): that of the first copy, in epoch ms; −1 if it has none.
    - `key`, `value` (bytes, or None for null): as the producer wrote them.
    - `headers` (list of name and bytes or None): the record's own, with order and duplicates, without the retry
      headers.
    - `times` (int): the number of retries so far; 0 for the first delivery, and again after a redrive.
    - `redrives` (int): how many times it was redriven from the dead letters, since the last reset.
    - `cycle` (int): how many times the position of its partition was reset.

    `id`, `cycle`, `redrives` and `times` together identify one attempt: the same values again are a duplicate.
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
    cycle: int


def parse(row: Read, rules: Rules, now: int) -> ParsedRecord:
    """Parse a record's headers, as of `now` (epoch ms). Never raises."""
    record = ParsedRecord(Partition(row.topic, row.partition), *row[2:])
    if any(REPLACED in key for key, _ in row.headers):
        return record._replace(headers=None, fault=UNREADABLE)
    if row.topic in rules.topics:
        return record
    latest = rules.latest_due(now)
    retry_state = parse_rendered(row.headers, rules.topics, latest) or parse_retry_headers(row.headers, rules, latest)
    if isinstance(retry_state, BadHeader):
        return record._replace(fault=f"bad-header: {retry_state.text}")
    return record._replace(retry_state=retry_state)


def for_handler(record: ParsedRecord) -> Record:
    """Return the record that its handler gets."""
    source, headers, retry_state = record.source, record.headers or [], record.retry_state
    if retry_state is None:  # on a main topic, our names mean nothing
        position = (record.id, *source, record.offset, record.timestamp)
        return Record(*position, record.key, record.value, headers, 0, 0, 0)
    topic, partition, offset = retry_state.id.rsplit(":", 2)
    first = (retry_state.id, topic, int(partition), int(offset), retry_state.timestamp)
    counts = (retry_state.times, retry_state.redrives, retry_state.cycle)
    return Record(*first, record.key, record.value, without_ours(headers), *counts)
