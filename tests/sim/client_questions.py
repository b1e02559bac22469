"""What the model of the client asks of the broker, and how the broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from sidecar.core.record import Partition
from tests.sim.client_parts import Toppar
from tests.sim.kafka_model import KafkaModel


class Questions:
    """Of one consumer. `slow` is called before each answer, and may raise."""

    def __init__(self, kafka: KafkaModel, group: str, slow: Callable[[str], None]) -> None:
        self.kafka, self.group, self._slow = kafka, group, slow
        self.toppars: dict[Partition, Toppar] = {}

    def _toppar(self, place: TopicPartition) -> Toppar:
        return self.toppars.setdefault(Partition(place.topic, place.partition), Toppar())

    def offsets_for_times(self, places: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The numbers behind logical offsets and times; a partition whose leader is away has none."""
        self._slow("offsets")
        return [self._number(place) for place in places]

    def _number(self, place: TopicPartition) -> TopicPartition:
        log = self.kafka.logs.get(Partition(place.topic, place.partition))
        if log is None or not log.led:
            # The real one has an error in it too, which cannot be made here; an offset below 0 says as much.
            return TopicPartition(place.topic, place.partition, OFFSET_INVALID)
        offset = log.start if place.offset == OFFSET_BEGINNING else log.end
        if place.offset >= 0:
            found = log.first_at(place.offset)
            offset = OFFSET_END if found is None else found
        return TopicPartition(place.topic, place.partition, offset)

    def list_topics(self, topic: str, timeout: float = -1) -> Any:
        """What partitions a topic has."""
        self._slow("topics")
        numbers = dict.fromkeys(range(self.kafka.sizes.get(topic, 0)))
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=numbers, error=None)})

    def committed(self, places: Iterable[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The group's offsets."""
        self._slow("committed")
        sources = [Partition(place.topic, place.partition) for place in places]
        if self._held_back(sources):
            raise failure(KafkaError._TIMED_OUT)
        known = self.kafka.committed
        return [TopicPartition(*source, *known.get((self.group, source), (OFFSET_INVALID, ""))) for source in sources]

    def _held_back(self, sources: Iterable[Partition]) -> bool:
        """Whether a request for these offsets is repeated, for one of them waits for a transaction's end."""
        return any(self.kafka.held[self.group, source] for source in sources)

    def get_watermark_offsets(
        self, place: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Where the log begins and ends; `cached`: as the last look at it said."""
        if cached:
            toppar = self._toppar(place)
            return toppar.edges
        self._slow("watermarks")
        log = self.kafka.logs.get(Partition(place.topic, place.partition))
        if log is None:
            raise failure(KafkaError._UNKNOWN_PARTITION)
        if not log.led:
            raise failure(KafkaError._TIMED_OUT)
        return log.start, log.end


def failure(code: int) -> KafkaException:
    """A call's error."""
    return KafkaException(KafkaError(code))
