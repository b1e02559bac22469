"""What the model of the client is made of: what `consume` returns, and what it knows of one partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, KafkaError

from reconsume.sidecar.core.record import Partition
from tests.sim.kafka_model import Stored


class Event(NamedTuple):
    """What `consume` returns, duck-typed as the client's message: a record, an end or an error."""

    source: Partition
    place: int | None
    failure: KafkaError | None = None
    stored: Stored | None = None

    def topic(self) -> str:
        return self.source.topic

    def partition(self) -> int:
        return self.source.number

    def offset(self) -> int | None:
        return self.place

    def error(self) -> KafkaError | None:
        return self.failure

    def key(self) -> bytes | None:
        return None if self.stored is None else self.stored.key

    def value(self) -> bytes | None:
        return None if self.stored is None else self.stored.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None if self.stored is None else list(self.stored.headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, -1 if self.stored is None else self.stored.appended

    @property
    def lasts(self) -> bool:
        """Whether nothing but being consumed removes it from the queue."""
        return self.failure is not None and self.failure.code() == KafkaError._AUTO_OFFSET_RESET


@dataclass
class Toppar:
    """What the client knows of one partition, from its first use to the client's end."""

    assigned: bool = False
    paused: bool = False
    fetching: bool = False
    """It has a position that is in the log, as far as the client knows."""
    start: int = OFFSET_INVALID
    """An offset or a logical one: where it fetches from after each change of its state, until something is consumed."""
    asked_with: Sequence[Partition] = ()
    """The partitions whose offsets are asked of the group in one request, its own among them."""
    asked_at: int = 0
    """After how many changes of the assignment."""
    position: int = OFFSET_INVALID
    """The next offset to fetch, or the logical one that is to be looked up first."""
    consumed: int | None = None
    """The offset behind the last record that was consumed."""
    told_end: int | None = None
    edges: tuple[int, int] = (OFFSET_INVALID, OFFSET_INVALID)
    queue: deque[Event] = field(default_factory=deque)

    def begin_anew(self, start: int | None = None) -> None:
        """Drop what was fetched under an older state of things, and fetch it again."""
        if start is not None:
            self.start = start
        self.position, self.told_end = self.start, None
        self.queue = deque(event for event in self.queue if event.lasts)
