"""A model of Kafka: logs whose transactions leave markers, and committed offsets with metadata.

Offsets are those of the real broker, markers and aborted records included (`test_client_conformance.py` compares).
Who may commit is told by `group_model.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import Partition
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transition_records import Copy


class Stored(NamedTuple):
    """A record in a log; `appended` is the broker's time, epoch ms."""

    offset: int
    appended: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Log:
    """One partition. `end` is the offset after the last record or marker, `start` the first offset that is left."""

    def __init__(self, ident: LogId = LogId.of("model", "0")) -> None:  # noqa: B008 - it never changes
        self.ident = ident
        """A topic that is made anew has another one."""
        self.records: list[Stored] = []
        self.everything: list[Stored] = []
        """Every record that was ever in it, for the checks at the end."""
        self.markers: dict[int, int] = {}
        """Where transactions end, and since when. A search by time finds markers too, which nobody ever reads."""
        self.aborted: dict[int, int] = {}
        """The same of records of aborted transactions."""
        self.start = 0
        self.end = 0
        self.led = True
        """Whether it has a leader: without one nothing of it is read or written."""
        self.in_sync = True
        """Whether it has as many replicas in sync as a write needs."""

    @property
    def takes(self) -> bool:
        """Whether it can be written to."""
        return self.led and self.in_sync

    def append(self, appended: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Add a record."""
        stored = Stored(self.end, appended, key, value, list(headers))
        self.records.append(stored)
        self.everything.append(stored)
        self.end += 1

    def cut(self, before: int) -> None:
        """Lose what lies below an offset: retention, or `delete_records`."""
        self.start = max(self.start, min(before, self.end))
        self.records = [stored for stored in self.records if stored.offset >= self.start]

    def truncate(self, end: int) -> list[Stored]:
        """Lose what lies at an offset or above it, as an unclean election does; what was lost."""
        lost = [stored for stored in self.records if stored.offset >= end]
        self.end = max(end, self.start)
        self.markers = {offset: at for offset, at in self.markers.items() if offset < self.end}
        self.aborted = {offset: at for offset, at in self.aborted.items() if offset < self.end}
        self.records = [stored for stored in self.records if stored.offset < end]
        return lost

    def first_at(self, time: int) -> int | None:
        """The first offset of a time (epoch ms), be it a record's, seen or not, or a marker's."""
        appended = {stored.offset: stored.appended for stored in self.records} | self.markers | self.aborted
        return min((offset for offset, at in appended.items() if at >= time and offset >= self.start), default=None)

    def after(self, position: int, most: int) -> list[Stored]:
        """Up to `most` records at or behind a position."""
        low, high = 0, len(self.records)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.records[middle].offset < position else (low, middle)
        return self.records[low : low + most]


class KafkaModel:
    """All logs and committed offsets. `appended` is told of each partition that has something new."""

    def __init__(self, wall: Callable[[], int], partitions: int) -> None:
        self.logs: dict[Partition, Log] = {}
        self.sizes: dict[str, int] = {}
        """How many partitions each topic has."""
        self.committed: dict[tuple[str, Partition], tuple[int, str]] = {}
        self.held: Counter[tuple[str, Partition]] = Counter()
        """By how many open transactions each group's offset is held back (KIP-447)."""
        self.refusing: set[str] = set()
        self.deleted: list[tuple[Partition, Log]] = []
        """Logs of topics that were deleted: what was in them is known to the checks."""
        self.partitions = partitions
        self.appended: Callable[[Partition], None] = lambda source: None
        self._made = 0
        self._wall = wall

    def create(self, topic: str, partitions: int | None = None) -> list[Partition]:
        """Make a topic, or add partitions to it."""
        self.sizes[topic] = partitions or self.partitions
        wanted = [Partition(topic, number) for number in range(self.sizes[topic])]
        made = [source for source in wanted if source not in self.logs]
        self._made += 1
        self.logs |= {source: Log(LogId.of("model", str(self._made))) for source in made}
        return made

    def delete(self, topic: str) -> None:
        """Delete a topic, and with it what groups have committed for it."""
        del self.sizes[topic]
        for source in [source for source in self.logs if source.topic == topic]:
            self.deleted.append((source, self.logs.pop(source)))
        self.committed = {key: value for key, value in self.committed.items() if key[1].topic != topic}

    def places(self, topic: str) -> list[Partition]:
        """The partitions that a topic has."""
        return [Partition(topic, number) for number in range(self.sizes[topic])]

    def send(self, source: Partition, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Append one plain record; its offset."""
        self.logs[source].append(self._wall(), key, value, headers)
        self.appended(source)
        return self.logs[source].end - 1

    def target(self, copy: Copy) -> Partition:
        """The partition that a copy goes to."""
        place = copy.spread if copy.key is None or copy.scattered else sum(copy.key)
        return Partition(copy.topic, place % self.sizes[copy.topic])

    def transact(self, group: str, copies: Iterable[Copy], offsets: Mapping[Partition, Progress]) -> None:
        """All or nothing, and here all: the copies, a marker behind them, and the offsets."""
        touched = []
        for copy in copies:
            target = self.target(copy)
            self.logs[target].append(self._wall(), copy.key, copy.value, copy.headers)
            touched.append(target)
        for place in dict.fromkeys(touched):
            self.mark(place)
        for source, progress in offsets.items():
            self.committed[group, source] = (progress.next, encode(source, progress))

    def mark(self, place: Partition, aborted: int = 0) -> None:
        """The end of a transaction, behind so many records of it that are never seen as it was aborted."""
        log = self.logs[place]
        log.aborted |= dict.fromkeys(range(log.end, log.end + aborted), self._wall())
        log.markers[log.end + aborted] = self._wall()
        log.end += aborted + 1
        self.appended(place)

    def leave_aborted(self, copies: Iterable[Copy]) -> None:
        """An aborted transaction: its records are never seen, but their offsets and the markers' are gone."""
        for place in {self.target(copy) for copy in copies}:
            self.mark(place, aborted=1)

    def hold(self, group: str, source: Partition) -> None:
        """A transaction over a group's offset is open, and nobody knows how it ends."""
        self.held[group, source] += 1

    def let_go(self, group: str, source: Partition) -> None:
        """It ends, aborted."""
        self.held[group, source] -= 1
        self.appended(source)

    def progress(self, group: str, source: Partition) -> Progress:
        """What the group has committed."""
        offset, metadata = self.committed.get((group, source), (0, ""))
        return decode(source, offset, metadata)
