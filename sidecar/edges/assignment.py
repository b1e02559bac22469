"""What is assigned to a lane's consumer: the rebalance callbacks, our own table, and the membership for transactions.

Everything here runs on the consumer's thread. Every assignment of a partition has its own epoch, so that whatever was
read, leased or decided under an older one can be told apart and refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, TopicPartition

from sidecar.core.assigned import Grant
from sidecar.core.progress import Progress, decode
from sidecar.core.record import Partition

COMMITTED_WITHIN = 2.0
"""Seconds. Committed offsets come within 5 ms, unless a dead pod's transaction still holds some back: then the client
itself goes on asking, and the other partitions of the assignment start meanwhile."""
ONE_WITHIN = 0.25
"""Seconds for one partition by itself; all partitions of an assignment may have to wait for this one after another."""
WATERMARKS_WITHIN = 10.0

_LOG = logging.getLogger("reconsume.assignment")


class Keeper(Protocol):
    """Whom the assignment tells. Calls are made on the consumer's thread and return at once."""

    def assigned(self, grants: Sequence[Grant]) -> None:
        """Partitions are ours now."""

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        """Partitions are revoked; `done` may be called from any thread once nothing of theirs is under way."""

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Partitions are not ours any more; nothing of theirs may be committed."""

    def missing(self, topic: str, records: int) -> None:
        """So many records of a topic were gone before they were read."""


class Membership(NamedTuple):
    """What a transaction needs: the group metadata, and which partitions were ours when it was taken."""

    metadata: Any
    epochs: Mapping[Partition, int]


Key: TypeAlias = tuple[str | None, int | None]
"""Topic and partition as a message gives them: the client's types allow None, a record never has it."""


@dataclass(slots=True)
class Slot:
    """One assigned partition. `granted`: the lane knows where it starts; `parked`: the lane wants it left unfetched."""

    partition: Partition
    epoch: int
    turn: int = 0
    granted: bool = False
    parked: bool = False

    @property
    def place(self) -> TopicPartition:
        """The partition as the client names it."""
        return TopicPartition(*self.partition)


class Assignment:
    """The partitions of one consumer. `lock_timeout`: seconds that a revoked one waits for its deliveries."""

    in_group = True
    """Whether it comes from a group, so that what keeps us out of the group matters."""

    def __init__(self, keeper: Keeper, *, start_at: str, lock_timeout: float) -> None:
        self.slots: dict[Key, Slot] = {}
        self.lock_timeout = lock_timeout
        self.membership: Membership | None = None
        """Replaced as a whole: the committer's thread always sees metadata and epochs of one moment."""
        self.rebalances = {"assigned": 0, "revoked": 0, "lost": 0}
        self._keeper = keeper
        self._start_at = start_at
        self._epochs = count(1)
        self._asked = threading.Event()
        self._leaving = False

    @property
    def placed(self) -> bool:
        """Whether nothing that is produced from now on can be missed: the group's offsets see to that."""
        return True

    def join(self, consumer: Consumer, topics: Sequence[str]) -> None:
        """Take part in the group, for these topics; a second time, for others, or as a new client."""
        self._leaving = False
        consumer.subscribe(list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)

    def leave(self, consumer: Consumer) -> None:
        """From now on partitions go for good; closing the consumer has everything revoked."""
        self._leaving = True

    def ask_membership(self) -> None:
        """Have the membership taken anew (from any thread); it is replaced once that is done."""
        self._asked.set()

    def answer(self, consumer: Consumer) -> None:
        """Take the membership anew if somebody asked for it."""
        if self._asked.is_set():
            self._take_membership(consumer)

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start each partition at its committed offset."""
        self.rebalances["assigned"] += 1
        for place in partitions:
            source = Partition(place.topic, place.partition)
            self.slots[source] = Slot(source, next(self._epochs))
        consumer.incremental_assign(self._placed(consumer, partitions))
        self._take_membership(consumer)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Wait until nothing of the partitions is under way, or the lock's time is over, then give them up."""
        self.rebalances["revoked"] += 1
        sources = [Partition(place.topic, place.partition) for place in partitions]
        self._take_membership(consumer)  # the last transactions of these partitions need today's generation
        done = threading.Event()
        self._keeper.release(sources, done.set)
        deadline = time.monotonic() + self.lock_timeout
        while not done.wait(0.02) and time.monotonic() < deadline:
            self.answer(consumer)
        if not done.is_set():
            text, extra = "gave up %d partitions with deliveries still out: %s", {"event": "gave-up-unanswered"}
            _LOG.warning(text, len(sources), _names(sources), extra=extra)
            self._keeper.dropped(sources)
        consumer.incremental_unassign(partitions)
        self._forget(consumer, sources)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Drop partitions that somebody else may own already; commit nothing of them."""
        self.rebalances["lost"] += 1
        sources = [Partition(place.topic, place.partition) for place in partitions]
        self._keeper.dropped(sources)
        consumer.incremental_unassign(partitions)
        self._forget(consumer, sources)

    def grant(self, consumer: Consumer, slot: Slot) -> None:
        """Tell the lane where a partition starts whose committed offset was held back when it was assigned."""
        self._start(consumer, consumer.committed([slot.place], timeout=COMMITTED_WITHIN)[0])

    def out_of_range(self, consumer: Consumer, slot: Slot, wanted: int) -> None:
        """The offset to read is not in the log: count what is gone, go on with what is there, under a new epoch."""
        low, high = _watermarks(consumer, slot)
        if slot.granted:
            extra = {"event": "offset-lost", "partition": str(slot.partition), "offset": wanted}
            text = "%s: offset %d is not in the log, which holds %d to %d"
            _LOG.error(text, slot.partition, wanted, low, high, extra=extra)
            self._keeper.missing(slot.partition.topic, max(low - wanted, wanted - high, 0))
            self._keeper.dropped([slot.partition])
            slot.epoch, slot.turn, slot.parked = next(self._epochs), 0, False
            start = Progress(low, ours=False)
        else:
            start = self._fresh(consumer, slot)
        self._begin(slot, start)
        consumer.incremental_unassign([slot.place])  # a partition in this state takes no seek
        consumer.incremental_assign([TopicPartition(*slot.partition, start.next)])
        self._take_membership(consumer)

    def _placed(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions with the offsets to start at; grants those that are known now.

        One partition whose offset is held back makes the request for all of them wait, so they are then asked for one
        by one; the client goes on asking for those that stay unknown, and `grant` is called at their first record.
        """
        try:
            known = consumer.committed(partitions, timeout=COMMITTED_WITHIN)
        except KafkaException:
            known = [self._one(consumer, place) for place in partitions]
        return [self._start(consumer, place) for place in known]

    def _one(self, consumer: Consumer, place: TopicPartition) -> TopicPartition:
        try:
            return consumer.committed([place], timeout=ONE_WITHIN)[0]
        except KafkaException as refusal:
            text, extra = "%s[%d]: the committed offset is held back: %s", {"event": "offset-held-back"}
            _LOG.warning(text, place.topic, place.partition, refusal, extra=extra)
            return TopicPartition(place.topic, place.partition, OFFSET_STORED)

    def _start(self, consumer: Consumer, place: TopicPartition) -> TopicPartition:
        if place.offset == OFFSET_STORED:
            return place
        slot = self.slots[place.topic, place.partition]
        progress = decode(place.offset, place.metadata) if place.offset >= 0 else self._fresh(consumer, slot)
        self._begin(slot, progress)
        return TopicPartition(place.topic, place.partition, progress.next)

    def _fresh(self, consumer: Consumer, slot: Slot) -> Progress:
        """Where a group without a committed offset begins."""
        low, high = _watermarks(consumer, slot)
        return Progress(high if self._start_at == "latest" else low, ours=False)

    def _begin(self, slot: Slot, progress: Progress) -> None:
        slot.granted = True
        self._keeper.assigned([Grant(slot.partition, slot.epoch, progress)])

    def _forget(self, consumer: Consumer, sources: Iterable[Partition]) -> None:
        for source in sources:
            self.slots.pop(source, None)
        if self._leaving:
            # Nothing more is committed. The client may end with its last partition and never answer, holding the GIL:
            # with Kafka away the whole process then stood still (2.16).
            self.membership = None
        else:
            self._take_membership(consumer)

    def _take_membership(self, consumer: Consumer) -> None:
        self._asked.clear()
        epochs = {slot.partition: slot.epoch for slot in self.slots.values()}
        try:
            self.membership = Membership(consumer.consumer_group_metadata(), epochs)
        except RuntimeError:  # closing: with its last partition the client may leave the group before it is asked
            self.membership = None


def _watermarks(consumer: Consumer, slot: Slot) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(slot.place, timeout=WATERMARKS_WITHIN, cached=False)
    return low, high


def _names(sources: Iterable[Partition]) -> str:
    return ", ".join(str(source) for source in sources)
