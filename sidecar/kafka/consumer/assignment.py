"""The partitions that are assigned to a lane's consumer: rebalance callbacks, table, and membership for transactions.

Everything here but `ask_membership` runs on the consumer's thread. Each assignment of a partition has its own epoch. So
anything that was read, leased or decided under an older epoch can be recognised and refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from itertools import count

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from sidecar.core.progress import Progress
from sidecar.core.record import Partition
from sidecar.kafka.consumer.listeners import AssignmentListener
from sidecar.kafka.consumer.log_checks import Edges, edges, log_loss, made_anew, untouched
from sidecar.kafka.consumer.membership import GroupMembership, Membership
from sidecar.kafka.consumer.owned_partition import OwnedPartition
from sidecar.kafka.consumer.owned_partitions import OwnedPartitions
from sidecar.kafka.consumer.revocation import drop_given_away, release
from sidecar.kafka.consumer.start_offsets import Start, Starts

LEFT_OVER = 500
"""Messages that are dropped at a time while everything is given up; callbacks wait behind them."""

_LOG = logging.getLogger("reconsume.assignment")


class Assignment(OwnedPartitions):
    """The partitions of one consumer.

    `lock_timeout`: seconds that a revoked partition waits for its deliveries. `stepwise`: as in GroupMembership.
    """

    in_group = True
    """Whether the partitions come from a consumer group, so that an error that keeps us out of the group matters."""

    def __init__(
        self, listener: AssignmentListener, *, start_at: str, lock_timeout: float, stepwise: bool = True
    ) -> None:
        super().__init__(listener, Starts(start_at))
        self.lock_timeout = lock_timeout
        self.rebalances = {"assigned": 0, "revoked": 0, "lost": 0}
        self.group = GroupMembership(stepwise=stepwise)
        self._epochs = count(1)
        self._asked = threading.Event()
        self._leave_by: float | None = None
        """Until when what is under way may end (monotonic seconds); None for a member that stays."""
        self._closing = False
        """Whether nothing is under way any more, and nothing more is asked of the client."""

    @property
    def membership(self) -> Membership | None:
        """What a transaction needs; None: nothing can be committed. For any thread."""
        return self.group.current

    @property
    def placed(self) -> bool:
        """Whether no record that is produced from now on can be missed. Here the group's offsets ensure that."""
        return True

    def join(self, consumer: Consumer, topics: Sequence[str]) -> None:
        """Subscribe to these topics as a member of the group.

        It is called again for other topics, or with a new client.
        """
        self._leave_by, self._closing = None, False
        consumer.subscribe(list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)

    def leave(self, consumer: Consumer) -> None:
        """Wait until nothing is under way, for at most `lock_timeout`. Closing the consumer then revokes everything.

        The member takes part in rebalances meanwhile. A client that is closing ignores the answer to the JoinGroup that
        it has sent (`rd_kafka_cgrp_handle_JoinGroup`, 2.16), and Kafka takes no commit of the generation before: where
        two pods ended one after the other, nothing more of the second could be committed.
        """
        self._leave_by = time.monotonic() + self.lock_timeout
        consumer.pause([slot.place for slot in self.slots.values()])
        sources = [slot.partition for slot in self.slots.values()]
        release(sources, self._listener, self.lock_timeout, lambda: self._serve(consumer))
        self._closing = True

    def ask_membership(self) -> None:
        """Request a renewal of the membership, from any thread. It is replaced once that is done."""
        self._asked.set()

    def answer(self, consumer: Consumer) -> None:
        """Renew the membership if that was requested."""
        if self._asked.is_set():
            self._take_membership(consumer)

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start each partition at its committed offset."""
        self.rebalances["assigned"] += 1
        sources = [Partition(place.topic, place.partition) for place in partitions]
        if self._leave_by is not None:
            self._hold(consumer, sources)
            return
        starts = self.starts.find(consumer, sources)
        for source in sources:
            self.slots[source] = OwnedPartition(source, next(self._epochs))
        self.client.give(consumer, starts)
        self._pause_again(consumer, sources)
        self._asked.clear()
        self.group.rebalanced(consumer, self._owned())
        self._begin(starts)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give the partitions up, once nothing of them is under way or `lock_timeout` is over.

        If the group does not wait for that, they may be another member's already: they are dropped at once.
        """
        self.rebalances["revoked"] += 1
        sources = [Partition(place.topic, place.partition) for place in partitions]
        if not self._closing:
            self._give_up(consumer, sources)
        self._forget(consumer, sources)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Drop partitions that another consumer may own already; commit nothing of them."""
        self.rebalances["lost"] += 1
        sources = [Partition(place.topic, place.partition) for place in partitions]
        self._listener.dropped(sources)
        self.group.lose()
        self._forget(consumer, sources)

    def seek(self, consumer: Consumer, slot: OwnedPartition, offset: int) -> None:
        """Continue a partition at an offset."""
        slot.sought = offset
        try:
            consumer.seek(TopicPartition(*slot.partition, offset))
        except KafkaException:  # a partition whose error is still unread takes no seek
            self._anew(consumer, [Start(slot.partition, offset, None)])

    def out_of_range(self, consumer: Consumer, slot: OwnedPartition, wanted: int) -> None:
        """Continue a partition whose next offset is not in the log.

        If the log was cut and begins after the offset, what was read stays under way, and only unread records are lost.
        If the log ends before the offset (an unclean leader election, or the topic was created again), the partition
        gets a new epoch. It then continues at the group's progress. While Kafka does not say what the log holds, the
        same offset is requested again.
        """
        wanted = wanted if slot.sought is None else min(wanted, slot.sought)
        found = edges(consumer, slot.partition)
        if found is not None and wanted < found.low:
            log_loss(slot.partition, wanted, found)
            self._anew(consumer, [Start(slot.partition, found.low, None)])
            self._listener.cut(slot.partition, slot.epoch, wanted, found.low)
        elif slot.last_at is not None and made_anew(consumer, {slot.partition: (wanted, slot.last_at)}):
            self.made_anew(consumer, slot)  # it has grown beyond the offset meanwhile
        elif found is None or wanted <= found.high:
            self._anew(consumer, [Start(slot.partition, wanted, None)])
        else:
            log_loss(slot.partition, wanted, found)
            self._go_back(consumer, slot, wanted, found)

    def made_anew(self, consumer: Consumer, slot: OwnedPartition) -> None:
        """Read a partition from its beginning: its log now belongs to another topic of the same name."""
        found = edges(consumer, slot.partition)
        if found is not None:
            text = "%s: the topic was deleted and created again; it is read from its beginning"
            extra = {"event": "topic-made-anew", "partition": str(slot.partition)}
            _LOG.warning(text, slot.partition, extra=extra)
            self._restart(consumer, slot, found, untouched(found.low))

    def _give_up(self, consumer: Consumer, sources: Sequence[Partition]) -> None:
        if self.group.is_overtaken(consumer):
            drop_given_away(sources, self._listener)
            return
        self._take_membership(consumer)  # the last transactions of these partitions need the present generation
        within = self.lock_timeout if self._leave_by is None else self._leave_by - time.monotonic()
        release(sources, self._listener, within, lambda: self.group.has_moved_on(consumer))

    def _serve(self, consumer: Consumer) -> bool:
        """Let the client call back, and drop what it has read; False: what a rebalance takes away is dropped there."""
        self.answer(consumer)
        consumer.consume(LEFT_OVER, 0)
        return False

    def _hold(self, consumer: Consumer, sources: Sequence[Partition]) -> None:
        """Take partitions that the group gives to a member that is about to leave, and read nothing of them."""
        self.client.give(consumer, [Start(source, OFFSET_END, None) for source in sources])
        consumer.pause([TopicPartition(*source) for source in sources])
        self._asked.clear()
        self.group.rebalanced(consumer, self._owned())

    def _go_back(self, consumer: Consumer, slot: OwnedPartition, wanted: int, found: Edges) -> None:
        progress = self.starts.after_truncation(consumer, slot.partition, found)
        if progress is None:
            self._anew(consumer, [Start(slot.partition, wanted, None)])
        else:
            self._restart(consumer, slot, found, progress)

    def _restart(self, consumer: Consumer, slot: OwnedPartition, found: Edges, progress: Progress) -> None:
        """Read a log from another offset, as a new assignment of the partition."""
        self._listener.truncated(slot.partition, found.high)
        slot.epoch, slot.seek_count, slot.paused, slot.sought = next(self._epochs), 0, False, None
        slot.told_end = False
        starts = [Start(slot.partition, progress.next, progress)]
        self._anew(consumer, starts)
        self._take_membership(consumer)
        self._begin(starts)

    def _forget(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        self.client.take_back(consumer, sources)
        for source in sources:
            self.slots.pop(source, None)
        if self._closing:
            # Nothing more is committed. The client may end with its last partition; it then never answers and holds the
            # GIL: with Kafka unreachable the whole process stood still (2.16).
            self.group.end()
        else:
            self._take_membership(consumer)

    def _take_membership(self, consumer: Consumer) -> None:
        self._asked.clear()
        self.group.take(consumer, self._owned())

    def _owned(self) -> dict[Partition, int]:
        return {slot.partition: slot.epoch for slot in self.slots.values()}
