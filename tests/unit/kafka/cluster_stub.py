"""A consumer's client whose brokers answer or do not, on a clock of its own; it counts what it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup

LOW, HIGH = 5, 40
"""Where each log begins and ends."""


class ClusterStub:
    """Partition n of a topic is led by broker n modulo `brokers`. A broker in `silent` answers nothing."""

    def __init__(self, brokers: int = 3, partitions: int = 12) -> None:
        self.brokers, self.partitions = brokers, partitions
        self.silent: set[int] = set()
        self.lists = True
        """Whether some broker says who leads what."""
        self.refuses: int | None = None
        """The code of its answer about a topic that it does not show; None: it shows all."""
        self.later = OFFSET_END
        """The answer to a search by time."""
        self.progress: Progress | None = None
        """What was committed, at `HIGH`; None without an offset."""
        self.now = 0.0
        self.asked: Counter[str] = Counter()

    @property
    def consumer(self) -> Consumer:
        """It, as the client."""
        return cast("Consumer", self)

    def lookup(self, leaders: Leaders) -> OffsetLookup:
        """The lookup of one operation."""
        return OffsetLookup(self.consumer, leaders)

    def leader(self, number: int) -> int:
        """Who leads a partition of this number."""
        return number % self.brokers

    def _times_out(self, timeout: float) -> KafkaException:
        self.now += timeout
        return KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float) -> list[Any]:
        self.asked["offsets"] += 1
        if any(self.leader(place.partition) in self.silent for place in places):
            raise self._times_out(timeout)
        edges = {OFFSET_BEGINNING: LOW, OFFSET_END: HIGH}
        return [answer(place, edges.get(place.offset, self.later)) for place in places]

    def committed(self, places: Iterable[TopicPartition], timeout: float) -> list[Any]:
        self.asked["committed"] += 1
        if (left := self.progress) is None:
            return [answer(place, -1001) for place in places]
        return [answer(one, HIGH, encode(Partition(one.topic, one.partition), left)) for one in places]

    def list_topics(self, topic: str = "orders", timeout: float = 0) -> Any:
        self.asked["leaders"] += 1
        if not self.lists:
            raise self._times_out(timeout)
        if self.refuses is not None:
            return SimpleNamespace(topics={topic: SimpleNamespace(partitions={}, error=KafkaError(self.refuses))})
        found = {number: SimpleNamespace(leader=self.leader(number)) for number in range(self.partitions)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=found, error=None)})

    def consumer_group_metadata(self) -> bytes:
        return b""

    def get_watermark_offsets(self, place: TopicPartition, cached: bool) -> tuple[int, int]:
        return LOW, HIGH

    def incremental_assign(self, places: object) -> None: ...

    def incremental_unassign(self, places: object) -> None: ...

    def pause(self, places: object) -> None: ...

    def resume(self, places: object) -> None: ...


def answer(place: TopicPartition, offset: int, metadata: str = "") -> Any:
    """What the client answers about one partition."""
    return SimpleNamespace(topic=place.topic, partition=place.partition, offset=offset, metadata=metadata, error=None)


class Event:
    """A message without a record: an end, or that an offset is not in the log."""

    def __init__(self, source: Partition, offset: int, code: int) -> None:
        self._source, self._offset, self._error = source, offset, KafkaError(code)

    def topic(self) -> str:
        return self._source.topic

    def partition(self) -> int:
        return self._source.number

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError:
        return self._error


class Lane:
    """Takes what the consumer hands over."""

    def __init__(self) -> None:
        self.starts: dict[Partition, int] = {}
        self.cuts: dict[Partition, tuple[int, int]] = {}
        self.shorter: list[Partition] = []
        self.runs: list[FetchedRecords] = []

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.starts |= {grant.partition: grant.progress.next for grant in grants}

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        done()

    def dropped(self, partitions: Sequence[Partition]) -> None: ...

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self.cuts[partition] = wanted, low

    def truncated(self, partition: Partition, high: int) -> None:
        self.shorter.append(partition)

    def received(self, runs: Sequence[FetchedRecords]) -> None:
        self.runs += runs

    def full(self) -> bool:
        return False
