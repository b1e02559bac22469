"""Load for fault tests: records that keep coming while things are killed, and a service that answers them unevenly."""

from __future__ import annotations

import threading
import zlib
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.kafka.group_topics import GroupTopics
from tests.support.service.behaviours import Answer, Behaviour, Request

STEP = 0.02
"""Seconds between two portions."""
FLUSH_SECONDS = 60.0
"""A killed broker's partitions have a new leader long before."""

SLOW = 0.6
"""Seconds. What comes after a slow record is done before it: the progress has gaps then."""


def uneven(request: Request) -> Behaviour:
    """A good third fails once, some always, a few are slow; the same for the same record whoever delivers it."""
    luck = zlib.crc32(request.id.encode()) % 100
    failing = luck < 5 or (luck < 40 and request.times == 0)
    slow = zlib.crc32(f"{request.id}/{request.times}".encode()) % 100 < 4
    return Answer(500 if failing else 200, after=SLOW if slow else 0.005)


class Load(threading.Thread):
    """Produces `rate` records a second to the group's first main topic until it is left. A context manager.

    `keys`: so many keys, in turn; none without it.
    Leaving it raises KafkaException when a record was refused, and AssertionError when some are not confirmed.
    """

    def __init__(self, group: GroupTopics, rate: int, keys: int | None = None) -> None:
        super().__init__(name="load", daemon=True)
        self.sent = 0
        self._topic, self._keys = group.main, keys
        self._each = max(1, round(rate * STEP))
        self._pause = self._each / rate
        self._ended = threading.Event()
        self._errors: list[KafkaError] = []
        self._producer = Producer({"bootstrap.servers": group.bootstrap, "enable.idempotence": True, "log_level": 2})

    def run(self) -> None:
        """Produce portions until ended."""
        while not self._ended.wait(self._pause):
            for _ in range(self._each):
                key = None if self._keys is None else b"key-%d" % (self.sent % self._keys)
                self._producer.produce(self._topic, b"order %d" % self.sent, key, on_delivery=self._landed)
                self.sent += 1
            self._producer.poll(0)

    def end(self) -> None:
        """Produce nothing more and wait until the broker has what was sent; harmless a second time."""
        self._ended.set()
        self.join()
        left = self._producer.flush(FLUSH_SECONDS)
        if self._errors:
            raise KafkaException(self._errors[0])
        assert left == 0, f"{left} records of the load are not confirmed"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if error is None:
            self.end()

    def _landed(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)
