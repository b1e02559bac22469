"""A message of the queue as the client returns it."""

from __future__ import annotations

from confluent_kafka import KafkaError

from tests.sim.ladder_rig import QUEUE
from tests.sim.samples import WALL

END = KafkaError._PARTITION_EOF


class Copy:
    """A copy, or what the client tells of an offset instead: with `code` END it is the end of the log."""

    def __init__(self, offset: int, at_ms: int = WALL, *, code: int | None = None) -> None:
        self._offset, self._at_ms, self._code = offset, at_ms, code

    def topic(self) -> str:
        return QUEUE.topic

    def partition(self) -> int:
        return QUEUE.number

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at_ms

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def headers(self) -> list[tuple[str, bytes]]:
        return []

    def key(self) -> bytes:
        return b"k"

    value = key
