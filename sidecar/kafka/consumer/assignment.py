"""What is assigned to a lane's consumer: the rebalance callbacks, our own table, and the membership for transactions.

Everything here runs on the consumer's thread. Every assignment of a partition has its own epoch, so that whatever was
read, leased or decided under an older one can be told apart and refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, TopicPartition

from sidecar.core.lane.partition import AssignedPartition
from sidecar.core.progress import Progress
from sidecar.core.record import Partition
from sidecar.kafka.consumer.listeners import AssignmentListener
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition
from sidecar.kafka.consumer.start_offsets import Edges, Start, Starts, edges

_LOG = logging.getLogger("reconsume.assignment")


class Membership(NamedTuple):
    """What a transaction needs: the group metadata, and which partitions were ours when it was taken."""

    metadata: Any
    epochs: Mapping[Partition, int]


class Assignment:
    """The partitions of one consumer. `lock_timeout`: seconds that a revoked one waits for its deliveries."""

    in_group = True
    """Whether it comes from a group, so that what keeps us out of the group matters."""

    def __init__(self, keeper: AssignmentListener, *, start_at: str, lock_timeout: float) -> None:
        self.slots: dict[Key, OwnedPartition] = {}
        self.lock_timeout = lock_timeout
        self.membership: Membership | None = None
        """Replaced as a whole: the committer's thread always sees metadata and epochs of one moment."""
        self.rebalances = {"assigned": 0, "revoked": 0, "lost": 0}
        self._keeper = keeper
        self.starts = Starts(start_at)
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
        sources = [Partition(place.topic, place.partition) for place in partitions]
        starts = self.starts.find(consumer, sources)
        for source in sources:
            self.slots[source] = OwnedPartition(source, next(self._epochs))
        self._give(consumer, starts)
        self._take_membership(consumer)
        self._begin(starts)

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

    def learn(self, consumer: Consumer, slot: OwnedPartition, offset: int) -> bool:
        """Tell the lane where a partition starts, at its first message, which has `offset`. False: ask again later."""
        start = slot.awaits
        if start is None:
            return True
        progress: Progress | None = Progress(offset, ours=False, width=start.width)
        if start.offset == OFFSET_STORED:
            found = self.starts.committed(consumer, [slot.partition])
            if slot.partition not in found:
                self._anew(consumer, [start])
                return False
            progress = found[slot.partition] or progress
        self._begin([start._replace(progress=progress)])
        return True

    def seek(self, consumer: Consumer, slot: OwnedPartition, offset: int) -> None:
        """Go on at an offset. A partition whose error nobody has read yet takes no seek, and begins anew there."""
        slot.sought = offset
        try:
            consumer.seek(TopicPartition(*slot.partition, offset))
        except KafkaException:
            self._anew(consumer, [Start(slot.partition, offset, None)])

    def out_of_range(self, consumer: Consumer, slot: OwnedPartition, wanted: int) -> None:
        """The offset to read is not in the log, or the group has none: go on where there is something to read.

        The log was cut below it: what was read stays under way, and only what nobody has read is lost. The log ends
        before it (an unclean leader election, or the topic was made anew): under a new epoch, where the group's
        progress says. While Kafka does not say what there is, the same offset is asked for again.
        """
        if slot.awaits is not None:
            starts = self.starts.find(consumer, [slot.partition])
            self._anew(consumer, starts)
            self._begin(starts)
            return
        wanted = wanted if slot.sought is None else min(wanted, slot.sought)
        found = edges(consumer, slot.partition)
        if found is not None and wanted < found.low:
            _log_loss(slot, wanted, found)
            self._anew(consumer, [Start(slot.partition, found.low, None)])
            self._keeper.cut(slot.partition, slot.epoch, wanted, found.low)
        elif found is None or wanted <= found.high:
            self._anew(consumer, [Start(slot.partition, wanted, None)])
        else:
            _log_loss(slot, wanted, found)
            self._go_back(consumer, slot, wanted, found)

    def made_anew(self, consumer: Consumer, slot: OwnedPartition) -> None:
        """The log is another one than was read, of a topic of the same name: read it from its beginning."""
        found = edges(consumer, slot.partition)
        if found is not None:
            text, extra = "%s: the topic was made anew, and is read from its beginning", {"event": "topic-made-anew"}
            _LOG.warning(text, slot.partition, extra={**extra, "partition": str(slot.partition)})
            self._restart(consumer, slot, found, Progress(found.low, ours=False))

    def _go_back(self, consumer: Consumer, slot: OwnedPartition, wanted: int, found: Edges) -> None:
        progress = self.starts.after_truncation(consumer, slot.partition, found)
        if progress is None:
            self._anew(consumer, [Start(slot.partition, wanted, None)])
        else:
            self._restart(consumer, slot, found, progress)

    def _restart(self, consumer: Consumer, slot: OwnedPartition, found: Edges, progress: Progress) -> None:
        """Read a log from elsewhere, as a new assignment of the partition."""
        self._keeper.truncated(slot.partition, found.high)
        slot.epoch, slot.seek_count, slot.paused, slot.sought = next(self._epochs), 0, False, None
        starts = [Start(slot.partition, progress.next, progress)]
        self._anew(consumer, starts)
        self._take_membership(consumer)
        self._begin(starts)

    def _anew(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Have the client fetch partitions from other offsets; one that is out of range takes no seek."""
        consumer.incremental_unassign([TopicPartition(*start.partition) for start in starts])
        self._give(consumer, starts)

    def _give(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Have the client fetch partitions. A pause outlives `incremental_unassign` (librdkafka 2.16), so a partition
        that this client had before, and that was parked then, would never be fetched again."""
        consumer.incremental_assign([TopicPartition(*start.partition, start.offset) for start in starts])
        consumer.resume([TopicPartition(*start.partition) for start in starts])
        consumer.pause([TopicPartition(*start.partition) for start in starts if self.slots[start.partition].paused])

    def _begin(self, starts: Collection[Start]) -> None:
        """Tell the lane which partitions start where. After the membership is taken: the lane may commit at once."""
        grants = []
        for start in starts:
            slot = self.slots[start.partition]
            slot.awaits = start if start.progress is None else None
            if start.progress is not None:
                slot.last, slot.last_at = start.progress.next - 1, start.progress.last_at
                grants.append(AssignedPartition(start.partition, slot.epoch, start.progress))
        if grants:
            self._keeper.assigned(grants)

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


def _log_loss(slot: OwnedPartition, wanted: int, found: Edges) -> None:
    extra = {"event": "offset-lost", "partition": str(slot.partition), "offset": wanted}
    text = "%s: offset %d is not in the log, which holds %d to %d"
    _LOG.error(text, slot.partition, wanted, found.low, found.high, extra=extra)


def _names(sources: Iterable[Partition]) -> str:
    return ", ".join(str(source) for source in sources)
