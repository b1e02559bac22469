"""The record as the core knows it: one consumed Kafka record as a frozen value."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.topics.headers_fast import RENDERED
from reconsume.topics.partition import Partition as Partition
from reconsume.topics.retry_headers import Headers, RetryState

RECORD_COST = 1_024
"""Bytes that a record counts for in addition to key, value and headers: the Python objects around it."""
HEADER_COST = 192
"""Bytes that a header counts for in addition to its name and value: tuple, text and bytes (146), rounded up as malloc
does it. Without it 16 MiB of records with many small headers took 149 MB."""
OUR_HEADERS = len(RENDERED) * HEADER_COST + 512
"""Bytes of our ten headers, which are short, without the id and the reason: those are added per record. To count each
header alone would cost a retry 0.5 us."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """The time as a value.

    `wall_ms`: epoch milliseconds, for points in time (due times, events). `steady_ms`: milliseconds of a clock that
    never jumps, for durations. A wall clock that is set back must not prolong a wait.
    """

    wall_ms: int
    steady_ms: int


def weight_of(key: bytes | None, value: bytes | None, headers: Headers | None, retry_state: RetryState | None) -> int:
    """Return the bytes that a record counts for while it is held in memory."""
    weight = RECORD_COST
    if key is not None:
        weight += len(key)
    if value is not None:
        weight += len(value)
    if headers:
        if retry_state is not None and len(headers) >= len(RENDERED) and headers[-len(RENDERED)][0] == RENDERED[0]:
            weight += OUR_HEADERS + 2 * len(retry_state.id) + len(retry_state.reason)
            headers = headers[: -len(RENDERED)]
        for name, data in headers:
            weight += HEADER_COST + len(name)
            if data is not None:
                weight += len(data)
    return weight


class Record(msgspec.Struct, frozen=True, gc=False):
    """One consumed record, independent of the Kafka client.

    `gc=False`: a record holds only bytes, strings and lists of them, never a cycle. A hundred thousand of them a second
    would keep the cycle collector busy for nothing.
    """

    source: Partition
    offset: int
    epoch: int
    """The epoch of the assignment under which the record was read. An answer with an older epoch is refused."""
    timestamp: int
    """The Kafka timestamp, epoch ms: on a level topic the broker's append time."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """All headers in their order; None if a key is not UTF-8, because the client cannot read them then."""
    retry_state: RetryState | None
    """The retry state from our own headers, on one of our topics. None on a main topic, where ours are ignored, unless
    another system has retried the record before (`retry.understand`) or its topic is drained (contract 3.9)."""
    fault: str = ""
    """Why the record may not be delivered (`bad-header`, `headers-unreadable`); empty for a good record."""
    weight: int = RECORD_COST
    """The bytes that the record counts for while it is held in memory: the result of `weight_of`, computed once."""
    again: int = 0
    """Retries made in place, in ordered mode. They are counted only in memory."""
    failed_at_ms: int = 0
    """When the first attempt failed that was followed by one in place, epoch ms; 0 if there is none."""

    nacks: int = 0
    """How often the service has nacked the record; counted only in memory, and no retry."""
    postponed_at_ms: int = 0
    """When the service postponed the record first since its last failure, epoch ms; 0 if it did not, or if the copy
    says so (`retry_state.postponed_at`)."""
    range_cycle: int = 0
    """Of a record of a main topic: the cycle of the reset whose range covers it; 0 if none does."""

    @property
    def id(self) -> str:
        """ORIGIN_MESSAGE_ID: `topic:partition:offset` of the first copy."""
        return self.position if self.retry_state is None else self.retry_state.id

    @property
    def position(self) -> str:
        """The position of this copy, `topic:partition:offset`."""
        return f"{self.source.topic}:{self.source.number}:{self.offset}"

    @property
    def main_topic(self) -> str:
        """REAL_TOPIC: the topic of the first copy."""
        return self.source.topic if self.retry_state is None else self.retry_state.topic

    @property
    def times(self) -> int:
        """How often the record was retried: RECONSUMETIMES plus the retries in place."""
        return self.again + (0 if self.retry_state is None else self.retry_state.times)

    @property
    def is_fresh_here(self) -> bool:
        """Whether it was neither tried in place nor nacked since it was read."""
        return self.again == 0 and self.nacks == 0

    @property
    def memory_only(self) -> bool:
        """Whether memory alone knows of its tries in place, its nacks, or a postponement: fetched again it would lack
        them."""
        return not self.is_fresh_here or self.postponed_at_ms > 0

    def tried(self, now_ms: int) -> Record:
        """Return the record for its next attempt, after one in place that failed at wall time `now_ms` (epoch ms)."""
        return replace(self, again=self.again + 1, failed_at_ms=self.failed_at_ms or now_ms, postponed_at_ms=0)

    def nacked(self) -> Record:
        """Return the record after one more nack."""
        return replace(self, nacks=self.nacks + 1)

    def untried(self) -> Record:
        """Return the record without the retries that were made in place."""
        return replace(self, again=0)

    def postponed(self, now_ms: int) -> Record:
        """Return the record after the service has postponed it at wall time `now_ms` (epoch ms)."""
        return self if self.postponed_at_ms else replace(self, postponed_at_ms=now_ms)

    def in_cycle(self, cycle: int) -> Record:
        """Return a record of a main topic as it is delivered in a cycle."""
        if self.retry_state is None:
            return replace(self, range_cycle=cycle)
        return replace(self, retry_state=replace(self.retry_state, cycle=cycle))

    @property
    def cycle(self) -> int:
        """RETRY_CYCLE: how often the position of its main partition was reset."""
        return self.retry_state.cycle if self.retry_state is not None else self.range_cycle

    @property
    def redrives(self) -> int:
        """RETRY_REDRIVES: how often the record was redriven from the DLQ."""
        return self.retry_state.redrives if self.retry_state is not None else 0


RecordId: TypeAlias = tuple[Partition, int]


NEVER = 1 << 62
"""A time (ms) that never comes; for bytes: no limit."""
