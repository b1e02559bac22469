"""What the model of the client asks of the broker, and how the broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.record import Partition
from tests.sim.client_parts import Toppar
from tests.sim.kafka_model import KafkaModel

NODES = 3


class Questions:
    """Of one consumer. `slow` is called before each answer, and may raise."""

    def __init__(self, kafka: KafkaModel, group: str, slow: Callable[[str], None]) -> None:
        self.kafka, self.group, self._slow = kafka, group, slow
        self.toppars: dict[Partition, Toppar] = {}
        self.calls_back = False
        """Whether a callback runs."""
        self.unreached: set[int] = set()
        """The nodes that this client cannot reach, though the cluster can."""

    def _toppar(self, place: TopicPartition) -> Toppar:
        return self.toppars.setdefault(Partition(place.topic, place.partition), Toppar())

    def offsets_for_times(self, places: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The numbers behind logical offsets and times; a partition that has no leader has none.

        If a leader does not answer, the request fails for all partitions.
        """
        self._slow("offsets")
        if not all(self.reaches(Partition(place.topic, place.partition)) for place in places):
            raise failure(KafkaError._TIMED_OUT)
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

    def reaches(self, source: Partition) -> bool:
        """Whether a partition has no leader, or one that this client can reach."""
        log = self.kafka.logs.get(source)
        return log is None or not log.led or leader_of(source) not in self.unreached

    def list_topics(self, topic: str, timeout: float = -1) -> Any:
        """What partitions a topic has, and who leads them; another node answers for one that is not reached."""
        assert not self.calls_back, "the next callback of this poll would end the process"
        self._slow("topics")
        places = [Partition(topic, number) for number in range(self.kafka.sizes.get(topic, 0))]
        led = {place: place in self.kafka.logs and self.kafka.logs[place].led for place in places}
        leaders = {place.number: SimpleNamespace(leader=leader_of(place) if led[place] else -1) for place in places}
        return SimpleNamespace(brokers=[0], topics={topic: SimpleNamespace(partitions=leaders, error=None)})

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
        if not log.led or not self.reaches(Partition(place.topic, place.partition)):
            raise failure(KafkaError._TIMED_OUT)
        return log.start, log.end


def leader_of(source: Partition) -> int:
    """The node that leads a partition, of `NODES`."""
    return (len(source.topic) + source.number) % NODES


def failure(code: int) -> KafkaException:
    """A call's error."""
    return KafkaException(KafkaError(code))
