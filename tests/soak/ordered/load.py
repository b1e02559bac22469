"""The load of an ordered group: a steady stream of keys, and the broker's word for each record."""

from __future__ import annotations

import random

from confluent_kafka import KafkaError, Message

from tests.soak.steady_load import SteadyLoad
from tests.support.kafka.group_topics import GroupTopics


class OrderedLoad(SteadyLoad):
    """Produces records of random keys until it is ended. `acked` has the ids that the broker has confirmed."""

    def __init__(self, group: GroupTopics, keys: int, rate: int, seed: str) -> None:
        super().__init__(f"load of {group.group}", group.bootstrap, lambda: rate)
        self.acked: set[str] = set()
        self._group, self._keys, self._chance = group, keys, random.Random(seed)
        self._sent = 0

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
