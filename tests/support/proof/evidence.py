"""All that a test run left behind, read once: the dumps of every topic, the committed progress, and the ledger.

Read with the eyes of a stranger: only names of topics and headers come from the product, never its parsing.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from reconsume.topics import retry_headers as wire
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, Row, dump
from tests.support.proof.ledger import KEPT, Delivery, Ledger

PartitionName: TypeAlias = tuple[str, int]
LifeKey: TypeAlias = tuple[str, int]
"""ORIGIN_MESSAGE_ID and RETRY_REDRIVES."""


class Progress(NamedTuple):
    """How far a partition is done: all below `next`, and `done` above it."""

    next: int
    done: frozenset[int] = frozenset()

    def covers(self, offset: int) -> bool:
        """Whether the record at `offset` is done."""
        return offset < self.next or offset in self.done


class Copy(NamedTuple):
    """A record on a retry topic or in the DLQ, with what our headers say of it."""

    topic: str
    row: Row
    id: str
    times: int
    redrives: int
    due: int
    ours: Mapping[str, bytes]

    @property
    def postponed(self) -> bool:
        """Whether the service postponed the record, so that this copy counts nothing by itself."""
        return wire.RETRY_POSTPONED_AT in self.ours

    def __str__(self) -> str:
        return f"{self.id} times={self.times} at {place_of(self.topic, self.row)}"


@dataclass(frozen=True)
class Evidence:
    """What is in Kafka and in the ledger. `retries` holds the level topics and the ready topic."""

    group: GroupTopics
    mains: Mapping[str, tuple[Row, ...]]
    retries: Mapping[str, tuple[Row, ...]]
    dlq: tuple[Row, ...]
    events: tuple[Row, ...]
    progress: Mapping[PartitionName, Progress]
    deliveries: tuple[Delivery, ...]

    @cached_property
    def sources(self) -> dict[str, tuple[str, Row]]:
        """Every record of a main topic, by its id."""
        return {place_of(topic, row): (topic, row) for topic, rows in self.mains.items() for row in rows}

    @cached_property
    def dead(self) -> tuple[Copy, ...]:
        """The dead letters."""
        return tuple(copy for row in self.dlq if (copy := read_copy(self.group.dlq, row)) is not None)

    @cached_property
    def died(self) -> frozenset[LifeKey]:
        """The lives that ended in the DLQ."""
        return frozenset((copy.id, copy.redrives) for copy in self.dead)

    @cached_property
    def foreign(self) -> dict[str, tuple[str, Row]]:
        """Records on retry topics that are not the sidecar's: unreadable, or dead-lettered under their own place."""
        own_place = {copy.id for copy in self.dead}
        rows = [(topic, row) for topic, rows in self.retries.items() for row in rows]
        places = {place_of(topic, row): (topic, row) for topic, row in rows}
        return {
            place: (topic, row)
            for place, (topic, row) in places.items()
            if place in own_place or read_copy(topic, row) is None
        }

    @cached_property
    def lives(self) -> dict[LifeKey, dict[int, list[Copy]]]:
        """The copies on retry topics by life and count; each list in the order of their append times."""
        lives: dict[LifeKey, dict[int, list[Copy]]] = {}
        for topic, rows in self.retries.items():
            for row in rows:
                copy = read_copy(topic, row)
                if copy is not None and place_of(topic, row) not in self.foreign:
                    lives.setdefault((copy.id, copy.redrives), {}).setdefault(copy.times, []).append(copy)
        for life in lives.values():
            for chain in life.values():
                chain.sort(key=lambda copy: copy.row.timestamp)
        return lives

    @cached_property
    def redrives(self) -> dict[str, int]:
        """How often each record that has copies was redriven."""
        most: dict[str, int] = {}
        for ident, redrives in self.lives:
            most[ident] = max(redrives, most.get(ident, 0))
        return most

    @cached_property
    def kept(self) -> frozenset[tuple[str, int, int]]:
        """The attempts (id, redrives, times) whose retry is counted in memory alone."""
        return frozenset((d.id, d.redrives, d.times) for d in self.deliveries if d.means == KEPT)

    def covers(self, topic: str, row: Row) -> bool:
        """Whether the committed progress says that the record is done."""
        progress = self.progress.get((topic, row.partition))
        return progress is not None and progress.covers(row.offset)

    def delay_of(self, topic: str) -> int:
        """A retry topic's delay in ms."""
        return self.group.levels.get(topic, 0)

    def sent_at(self, delivery: Delivery) -> int:
        """When it was sent at the earliest: it arrives at once where the service does nothing else."""
        return delivery.received

    def unseen(self, copy: Copy) -> bool:
        """Whether the attempt that a copy counts may have ended before the service read it."""
        return False

    # --- what an operator destroyed on purpose: nothing, but in the soak ---------------------------------------------

    def first_topic(self, chain: Sequence[Copy]) -> str:
        """The topic of an attempt's first copy. Of a copy that hopped on only the later one may be left."""
        return chain[0].topic

    def name_of(self, topic: str) -> str:
        """The name on Kafka of a topic that stands here."""
        return topic

    def destroyed(self, key: LifeKey, times: int) -> bool:
        """Whether what follows this attempt was destroyed."""
        return False

    @cached_property
    def touched(self) -> frozenset[LifeKey]:
        """The lives of which something was destroyed: not all that happened to them can be seen any more."""
        return frozenset()


def place_of(topic: str, row: Row) -> str:
    """`topic:partition:offset`."""
    return f"{topic}:{row.partition}:{row.offset}"


def read_copy(topic: str, row: Row) -> Copy | None:
    """What our headers say; None when one is missing, doubled, or not in its form."""
    ours = [(key, value) for key, value in row.headers if key in wire.OURS]
    found = {key: value for key, value in ours if value is not None}
    if len(found) != len(ours):
        return None
    identity = found.get(wire.ORIGIN_MESSAGE_ID, b"").decode(errors="replace")
    numbers = [found.get(key, b"") for key in (wire.RECONSUMETIMES, wire.RETRY_REDRIVES, wire.RETRY_DUE_AT)]
    if identity.count(":") != 2 or not all(re.fullmatch(rb"[0-9]{1,16}", number) for number in numbers):
        return None
    times, redrives, due = map(int, numbers)
    return Copy(topic, row, identity, times, redrives, due, found)


def read_progress(offset: int, metadata: str | None) -> Progress:
    """Committed progress from an offset and its metadata: `rc1`, flags, a position, and base64url of zlib of the done
    set. That is pairs of counts, *so many open, so many done*, and then a bitmap, all behind how many pairs there are.

    What may follow behind another dot says nothing about what is done.
    """
    head, _, _, body, *_ = [*(metadata or "").rstrip().split("."), "", "", ""]
    if head != "rc1" or not body:
        return Progress(offset)
    content = zlib.decompress(base64.urlsafe_b64decode(body))
    done, at, counts = set[int](), offset, _counts(content)
    for _ in range(next(counts)[0]):
        at += next(counts)[0]
        length = next(counts)[0]
        done |= set(range(at, at + length))
        at += length
    gap, end = next(counts)
    bits = int.from_bytes(content[end:], "little")
    return Progress(offset, frozenset(done | {at + gap + n for n in range(bits.bit_length()) if bits >> n & 1}))


def _counts(content: bytes) -> Iterator[tuple[int, int]]:
    """Counts of seven bits a byte, the lowest first, and where each one ends."""
    number = shift = 0
    for place, byte in enumerate(content):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number, place + 1
            number = shift = 0


def collect(group: GroupTopics, ledger: Ledger) -> Evidence:
    """Read everything. The sidecars must have stopped, or have nothing left to do.

    Progress first: what it covers is in the topics, because both are one transaction.
    """
    topics = (*group.mains, *group.retries, group.dlq, group.names.events)
    with ThreadPoolExecutor(4) as pool:
        main_progress = pool.submit(read_committed_progress, group, group.group, group.mains)
        retry_progress = pool.submit(read_committed_progress, group, group.names.retry_group, group.retries)
        progress = {**main_progress.result(), **retry_progress.result()}
        rows = dict(zip(topics, pool.map(lambda topic: tuple(dump(group.bootstrap, topic)), topics), strict=True))
    return Evidence(
        group=group,
        mains={topic: rows[topic] for topic in group.mains},
        retries={topic: rows[topic] for topic in group.retries},
        dlq=rows[group.dlq],
        events=rows[group.names.events],
        progress=progress,
        deliveries=ledger.deliveries(),
    )


def read_committed_progress(
    group: GroupTopics, member_of: str, topics: tuple[str, ...]
) -> dict[PartitionName, Progress]:
    """The committed progress of a consumer group, by partition."""
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": member_of, "enable.auto.commit": False})
    try:
        found = consumer.list_topics(timeout=SECONDS).topics
        places = [TopicPartition(topic, number) for topic in topics for number in found[topic].partitions]
        committed = consumer.committed(places, timeout=SECONDS)
        return {(p.topic, p.partition): read_progress(p.offset, p.metadata) for p in committed if p.offset >= 0}
    finally:
        consumer.close()
