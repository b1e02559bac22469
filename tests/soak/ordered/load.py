"""The load of an ordered group: a steady stream of keys, and the broker's word for each record."""

from __future__ import annotations

import random
import threading
import time

from confluent_kafka import KafkaError, Message, Producer

from tests.support.kafka.group_topics import GroupTopics

STEP = 0.05
"""Seconds between two portions."""
FLUSH = 120.0
"""Seconds after which what is unconfirmed at the end is a failure of the cluster."""


class OrderedLoad(threading.Thread):
    """Produces records of random keys until it is ended. `acked` has the ids that the broker has confirmed."""

    def __init__(self, group: GroupTopics, keys: int, rate: int, seed: str) -> None:
        super().__init__(name=f"load of {group.group}", daemon=True)
        self.acked: set[str] = set()
        self._group, self._keys, self._rate, self._chance = group, keys, rate, random.Random(seed)
        self._sent = 0
        self._ended = threading.Event()
        # Idempotent: what is sent again keeps its order within the partition.
        self._producer = Producer(
            {"bootstrap.servers": group.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )

    def run(self) -> None:
        """Produce what is due, portion by portion."""
        owed, last = 0.0, time.monotonic()
        while not self._ended.wait(STEP):
            now = time.monotonic()
            owed += min(now - last, 1.0) * self._rate
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
        key = b"account %d" % self._chance.randrange(self._keys)
        topic = self._chance.choice(self._group.mains)
        try:
            self._producer.produce(topic, b"entry %d" % self._sent, key, on_delivery=self._landed)
        except BufferError:  # the cluster has been away for long
            return
        self._sent += 1

    def _landed(self, error: KafkaError | None, message: Message) -> None:
        # Sent again and known to the broker already, a record is confirmed without its offset.
        if error is None and message.offset() is not None:
            self.acked.add(f"{message.topic()}:{message.partition()}:{message.offset()}")
