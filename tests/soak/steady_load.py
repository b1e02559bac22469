"""A steady stream of records, at a rate that may change."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

STEP = 0.05
"""Seconds between two portions."""
FLUSH = 120.0
"""Seconds after which what is unconfirmed at the end is a failure of the cluster."""


class SteadyLoad(threading.Thread, ABC):
    """Produces records at `rate` a second until it is ended."""

    def __init__(self, name: str, bootstrap: str, rate: Callable[[], int], **config: Any) -> None:
        super().__init__(name=name, daemon=True)
        self._rate, self._ended = rate, threading.Event()
        # Idempotent: what is sent again keeps its order within the partition.
        common = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer(common | config)

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

    @abstractmethod
    def _produce(self) -> None:
        """Send the next record, or leave it out while the cluster takes none."""
