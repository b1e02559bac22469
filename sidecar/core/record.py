"""The record as the core knows it: one consumed Kafka record as a frozen value."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from topics.headers import Headers, RetryState
from topics.headers_fast import RENDERED

RECORD_COST = 1_024
"""Bytes that a record counts for beside key, value and headers: the Python objects around it."""
HEADER_COST = 192
"""Bytes that a header counts for beside its name and value: tuple, text and bytes (146), rounded up as malloc does it.
Without it 16 MiB of records with many small headers were 149 MB."""
OUR_HEADERS = len(RENDERED) * HEADER_COST + 512
"""Bytes of our ten headers, which are short, but for what a life says twice: each alone would cost a retry 0.5 us."""


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


class Now(NamedTuple):
    """The time as a value.

    `wall` is epoch milliseconds and says *what* time it is (due times, events). `steady` is milliseconds of a clock
    that never jumps and says *how long* to wait: a wall clock set back must not prolong a wait.
    """

    wall: int
    steady: int


def weight_of(key: bytes | None, value: bytes | None, headers: Headers | None, life: RetryState | None) -> int:
    """The bytes that a record counts for while it is held in memory."""
    weight = RECORD_COST
    if key is not None:
        weight += len(key)
    if value is not None:
        weight += len(value)
    if headers:
        if life is not None and len(headers) >= len(RENDERED) and headers[-len(RENDERED)][0] == RENDERED[0]:
            weight += OUR_HEADERS + 2 * len(life.id) + len(life.reason)
            headers = headers[: -len(RENDERED)]
        for name, data in headers:
            weight += HEADER_COST + len(name)
            if data is not None:
                weight += len(data)
    return weight


class Record(msgspec.Struct, frozen=True, gc=False):
    """One consumed record, free of the Kafka client.

    `gc=False`: a record holds only bytes, strings and lists of them, never a cycle, and a hundred thousand of them a
    second would keep the cycle collector busy for nothing.
    """

    source: Partition
    offset: int
    epoch: int
    """The assignment of the partition under which it was read; an answer for an older one is refused."""
    timestamp: int
    """The Kafka timestamp, epoch ms: on a level topic the broker's append time."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """All headers in their order; None when a key is not UTF-8 and the client cannot read them."""
    life: RetryState | None
    """What our own headers say on one of our topics. None on a main topic, where ours are ignored, unless another
    system has retried the record before (`retry.understand`)."""
    fault: str = ""
    """Why it may not be delivered (`bad-header`, `headers-unreadable`); empty for a good record."""
    weight: int = RECORD_COST
    """The bytes that it counts for while it is held in memory: `weight_of`, asked once."""
    again: int = 0
    """Retries made in place, counted in memory alone: in ordered mode, and after a nack."""
    failed_at: int = 0
    """When the first try failed that is followed by one in place, epoch ms; 0 while there is none."""

    @property
    def id(self) -> str:
        """ORIGIN_MESSAGE_ID: `topic:partition:offset` of the first copy."""
        return self.life.id if self.life is not None else f"{self.source.topic}:{self.source.number}:{self.offset}"

    @property
    def times(self) -> int:
        """RECONSUMETIMES, and the retries in place: how often it has been retried."""
        return self.again if self.life is None else self.life.times + self.again

    def tried(self, now: int) -> Record:
        """The record after a try in place that failed at wall time `now` (epoch ms), for the next one."""
        return replace(self, again=self.again + 1, failed_at=self.failed_at or now)

    @property
    def redrives(self) -> int:
        """RETRY_REDRIVES: how often it was brought back from the DLQ."""
        return self.life.redrives if self.life is not None else 0


RecordId: TypeAlias = tuple[Partition, int]


NEVER = 1 << 62
