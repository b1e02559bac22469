"""Which attempt of a record something is about, and what a decision needs to know of a record and its failed attempt.

The latter are protocols, because sidecar and Spark have their own types.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from reconsume.topics.expiry import Expiry
from reconsume.topics.partition import Partition
from reconsume.topics.retry_headers import Headers, RetryState


class Attempt(NamedTuple):
    """One attempt at a record. Of two attempts at the same record the greater is the later one (contract 11.2).

    `cycle`: how often the position of the record's partition was reset. `redrives`: those within the cycle. `times`:
    the retries since. Attempts with the same cycle and redrives have the same Idempotency-Key.
    """

    cycle: int
    redrives: int
    times: int

    @property
    def series(self) -> str:
        """The cycle and the redrives as texts name them: `<redrives>`, with a cycle `<cycle>.<redrives>`."""
        return f"{self.cycle}.{self.redrives}" if self.cycle else str(self.redrives)


class HasCounts(Protocol):
    """A value that names an attempt: a retry state, a record, an event, a decision, a fact of an audit."""

    @property
    def cycle(self) -> int: ...
    @property
    def redrives(self) -> int: ...
    @property
    def times(self) -> int: ...


def attempt_of(counts: HasCounts) -> Attempt:
    """Return the attempt that a value is about."""
    return Attempt(counts.cycle, counts.redrives, counts.times)


class ReadRecord(Protocol):
    """A record as its reader knows it.

    - `source`, `offset`, `timestamp`: the position of this copy, and its Kafka timestamp (epoch ms, −1: none).
    - `headers`: all of them; None if they cannot be read.
    - `retry_state`: the retry state in the headers; None on a main topic, as a rule (`core/record.py`).
    - `fault`: why the record may not be delivered; empty for a good record.
    - `id`: ORIGIN_MESSAGE_ID. `times`: the retries so far. `cycle`: how often the position of its partition was reset.
    - `failed_at_ms`: when the first attempt failed that was followed by one in place (epoch ms); 0 if there is none.
    """

    @property
    def source(self) -> Partition: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers | None: ...
    @property
    def retry_state(self) -> RetryState | None: ...
    @property
    def fault(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def times(self) -> int: ...
    @property
    def cycle(self) -> int: ...
    @property
    def failed_at_ms(self) -> int: ...


class Failure(Protocol):
    """A failed attempt: its class and text, and the delay (ms) or level that the service asked for.

    `level` is −1 for the DLQ, 0 for the ladder, n > 0 for level n of the table, or None. `expires`: when the record is
    worth no retry any more; None if the service did not say.
    """

    @property
    def reason(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def delay(self) -> int | None: ...
    @property
    def level(self) -> int | None: ...
    @property
    def expires(self) -> Expiry | None: ...


def topic_of(record: ReadRecord) -> str:
    """Return the main topic of a record."""
    return record.source.topic if record.retry_state is None else record.retry_state.topic


def retry_state_of(record: ReadRecord) -> RetryState:
    """Return the retry state from the record's headers, or a new one if it has none (it comes from a main topic)."""
    if record.retry_state is not None:
        return record.retry_state
    return RetryState(record.id, record.source.topic, timestamp=record.timestamp, cycle=record.cycle)
