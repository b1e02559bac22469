"""A model of Kafka: logs whose transactions leave markers, committed offsets with metadata, and who owns what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sidecar.core.copies import Copy
from sidecar.core.progress import Progress, decode, encode
from sidecar.core.record import Partition
from topics.headers import Headers

Owner = tuple[str, int]
"""A process and the epoch under which it holds a partition."""


class Stored(NamedTuple):
    """A record in a log; `appended` is the broker's time, epoch ms."""

    offset: int
    appended: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Log:
    """One partition. `end` is the offset after the last record or marker."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.end = 0

    def append(self, appended: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.records.append(Stored(self.end, appended, key, value, list(headers)))
        self.end += 1

    def after(self, position: int, most: int) -> list[Stored]:
        """Up to `most` records at or behind a position."""
        low, high = 0, len(self.records)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.records[middle].offset < position else (low, middle)
        return self.records[low : low + most]


class KafkaModel:
    """All logs and groups. `appended` is told of each partition that has something new."""

    def __init__(self, wall: Callable[[], int], partitions: int) -> None:
        self.logs: dict[Partition, Log] = {}
        self.committed: dict[tuple[str, Partition], tuple[int, str]] = {}
        self.owners: dict[tuple[str, Partition], Owner] = {}
        self.refusing: set[str] = set()
        self.partitions = partitions
        self.appended: Callable[[Partition], None] = lambda source: None
        self._wall = wall

    def create(self, topic: str) -> list[Partition]:
        """Make a topic."""
        made = [Partition(topic, number) for number in range(self.partitions)]
        self.logs |= {source: Log() for source in made}
        return made

    def send(self, source: Partition, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Append one plain record; its offset."""
        self.logs[source].append(self._wall(), key, value, headers)
        self.appended(source)
        return self.logs[source].end - 1

    def is_owner(self, group: str, places: Mapping[Partition, int], name: str) -> bool:
        """Whether the group still knows this member for all these partitions and epochs."""
        return all(self.owners.get((group, source)) == (name, epoch) for source, epoch in places.items())

    def transact(self, group: str, copies: Iterable[Copy], offsets: Mapping[Partition, Progress]) -> None:
        """All or nothing, and here all: the copies, a marker behind them, and the offsets."""
        touched = []
        for copy in copies:
            place = copy.spread if copy.key is None else sum(copy.key)
            target = Partition(copy.topic, place % self.partitions)
            self.logs[target].append(self._wall(), copy.key, copy.value, copy.headers)
            touched.append(target)
        for target in dict.fromkeys(touched):
            self.logs[target].end += 1
            self.appended(target)
        for source, progress in offsets.items():
            self.committed[group, source] = (progress.next, encode(progress))

    def leave_aborted(self, copies: Iterable[Copy]) -> None:
        """An aborted transaction: its records are never seen, but their offsets and the markers' are gone."""
        for topic in {copy.topic for copy in copies}:
            for number in range(self.partitions):
                self.logs[Partition(topic, number)].end += 2

    def progress(self, group: str, source: Partition) -> Progress:
        """What the group has committed."""
        offset, metadata = self.committed.get((group, source), (0, ""))
        return decode(offset, metadata)
