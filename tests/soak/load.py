"""The soak's load: records on every main topic at the schedule's rate, and the broker's word for each of them."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, Message

from tests.soak.steady_load import SteadyLoad
from tests.support.kafka.group_topics import GroupTopics

SHARES = (5, 3, 2)
"""How the main topics share the load."""
SIZES = (20, 80, 200, 400, 1500)


class SoakLoad(SteadyLoad):
    """Produces until it is ended. `acked` has the offsets that the broker has confirmed, by topic and partition."""

    def __init__(self, group: GroupTopics, rate: Callable[[], int], seed: int) -> None:
        # So that partitions which are added get records soon.
        super().__init__("load", group.bootstrap, rate, **{"topic.metadata.refresh.interval.ms": 10_000})
        self.acked: Mapping[tuple[str, int], array[int]]
        self.sent = self.confirmed = 0
        self.refused: list[str] = []
        self._acked: defaultdict[tuple[str, int], array[int]] = defaultdict(lambda: array("q"))
        self.acked = self._acked
        self._chance = random.Random(f"{seed}/records")
        self._topics = [topic for topic, share in zip(group.mains, SHARES, strict=True) for _ in range(share)]

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
