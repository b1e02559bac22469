"""The records of a run: as many as there are at once, or so many a second."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.peers.judge import body

TICK = 0.01


def fill(bootstrap: str, topic: str, records: int) -> None:
    """A topic with so many records, of which peers that parse JSON can take each."""
    cluster.create(bootstrap, topic)
    cluster.fill(bootstrap, topic, records, value=body(0))


class Pacer:
    """Produces records with running numbers, evenly; `sent` says how many so far."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic, self._rate, self.sent = topic, rate, 0

    def run(self, seconds: float) -> None:
        """Produce for so many seconds; all is with the broker at the end."""
        for due in self._dues(self.sent, seconds):
            for number in range(self.sent, due):
                self._producer.produce(self._topic, body(number), b"key-%d" % number, headers=cluster.HEADERS)
            self.sent = due
            self._producer.poll(0)
        if self._producer.flush(10):
            raise SystemExit("the broker did not take the records")

    def _dues(self, before: int, seconds: float) -> Iterator[int]:
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds:
            yield before + int(gone * self._rate)
            time.sleep(TICK)
        yield before + round(seconds * self._rate)
