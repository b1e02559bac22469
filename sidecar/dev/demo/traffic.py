"""Produce the demo's orders a few at a time, as a shop's customers would."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from reconsume.sidecar.dev.demo.orders import TOPIC, Order
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.clients import make_client


class Traffic:
    """A producer of `orders`, evenly over `seconds`, from the first call of `step`."""

    def __init__(self, bootstrap: str, orders: Sequence[Order], seconds: float) -> None:
        self._producer = make_client(
            Producer, {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._orders, self._seconds = orders, seconds
        self._began: float | None = None
        self._sent = 0
        self._failed: KafkaError | None = None
        self.stored = 0
        """The number of orders that Kafka has stored."""

    def step(self) -> None:
        """Produce the orders that are due by now. Raises BrokerError if Kafka refused one."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        due = min(len(self._orders), 1 + int(len(self._orders) * (now - self._began) / self._seconds))
        for order in self._orders[self._sent : due]:
            self._producer.produce(
                TOPIC, key=order.key, value=order.value, headers=list(order.headers), on_delivery=self._landed
            )
        self._sent = max(self._sent, due)
        self._producer.poll(0)
        if self._failed is not None:
            raise BrokerError(f"an order could not be produced: {self._failed.str()}")

    def _landed(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed = error
        else:
            self.stored += 1
