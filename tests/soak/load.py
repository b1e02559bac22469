"""The soak's load: records on every main topic at the schedule's rate, and the broker's word for each of them."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, Message, Producer

from tests.support.kafka.group_topics import GroupTopics

STEP = 0.05
"""Seconds between two portions."""
FLUSH = 120.0
"""Seconds after which what is unconfirmed at the end is a failure of the cluster."""
SHARES = (5, 3, 2)
"""How the main topics share the load."""
SIZES = (20, 80, 200, 400, 1500)


class SoakLoad(threading.Thread):
    """Produces until it is ended. `acked` has the offsets that the broker has confirmed, by topic and partition."""

    def __init__(self, group: GroupTopics, rate: Callable[[], int], seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self.acked: Mapping[tuple[str, int], array[int]]
        self.sent = self.confirmed = 0
        self.refused: list[str] = []
        self._acked: defaultdict[tuple[str, int], array[int]] = defaultdict(lambda: array("q"))
        self.acked = self._acked
        self._rate, self._chance = rate, random.Random(f"{seed}/records")
        self._topics = [topic for topic, share in zip(group.mains, SHARES, strict=True) for _ in range(share)]
        self._ended = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": group.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                # So that partitions which are added get records soon.
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )

    def run(self) -> None:
        """Produce what is due, portion by portion."""
        owed, last = 0.0, time.monotonic()
        while not self._ended.wait(STEP):
            now = time.monotonic()
            owed += min(now - last, 1.0) * self._rate()
            last = now
            for _ in range(int(owed)):
                self._produce()
            owed -= int(owed)
            self._producer.poll(0)

    def end(self) -> int:
        """Produce nothing more, and wait for the broker's word; how many records are still without it."""
        self._ended.set()
        self.join()
        return self._producer.flush(FLUSH)

    def _produce(self) -> None:
        chance = self._chance
        text = f"order {self.sent} " + "x" * chance.choice(SIZES)
        key = f"customer {chance.randrange(5000)}".encode() if chance.random() < 0.7 else None
        value = None if chance.random() < 0.005 else text.encode()
        headers = [("trace", b"%d" % self.sent), ("trace", None)] if chance.random() < 0.2 else []
        try:
            self._producer.produce(chance.choice(self._topics), value, key, headers=headers, on_delivery=self._landed)
        except BufferError:  # the cluster has been away for long
            return
        self.sent += 1

    def _landed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        self.confirmed += 1
        self._acked[message.topic() or "", message.partition() or 0].append(message.offset() or 0)
