"""The partitions that are assigned to a lane's consumer: rebalance callbacks, table, and membership for transactions.

It is one machine: where each partition starts, since when the lane knows it, and how it is given up.

Everything here but `ask_membership` runs on the consumer's thread. Each assignment of a partition has its own epoch. So
anything that was read, leased or decided under an older epoch can be recognised and refused.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.partition import AssignedPartition, WantedFetch
from reconsume.sidecar.core.progress import LogId, Progress, is_recreated
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import ClientAssignment, Key, OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import (
    Edges,
    LogIds,
    OffsetLookup,
    edges,
    log_loss,
    log_recreated,
    no_log_ids,
    recreated,
    untouched,
)
from reconsume.sidecar.kafka.consumer.membership import GroupMembership, Membership, drop_given_away, release
from reconsume.sidecar.kafka.consumer.start_offsets import ReaderBefore, Start, Starts
from reconsume.sidecar.kafka.listeners import AskRestart, AssignmentListener, RestartCause, RestartReason, no_restart

LOG_EDGES = (OFFSET_BEGINNING, OFFSET_END)
"""Where a partition starts of which the group has read nothing: its first message says at which offset that is."""
LEFT_OVER = 500
"""Messages that are dropped at a time while everything is given up; callbacks wait behind them."""

_LOG = logging.getLogger("reconsume.assignment")


class Assignment:
    """The partitions of one consumer.

    `lock_timeout`: seconds that a revoked partition waits for its deliveries. `stepwise`: as in GroupMembership.
    `ask_restart`: asked for when a topic was recreated; where it refuses, the new log is read by the same client.
    """

    in_group = True
    """Whether the partitions come from a consumer group, so that an error that keeps us out of the group matters."""

    def __init__(
        self,
        listener: AssignmentListener,
        *,
        start_at: str,
        lock_timeout: float,
        stepwise: bool = True,
        before: ReaderBefore | None = None,
        log_ids: LogIds = no_log_ids,
        ask_restart: AskRestart = no_restart,
    ) -> None:
        self._listener, self._ask_restart = listener, ask_restart
        self.owned_partitions: dict[Key, OwnedPartition] = {}
        self.put_off: set[Partition] = set()
        """The partitions that are to be looked up after the callback: in it not every request may be made."""
        self.client = ClientAssignment()
        self.starts = Starts(start_at, before, log_ids)
        self.lock_timeout = lock_timeout
        self.rebalances = {"assigned": 0, "revoked": 0, "lost": 0}
        self.group = GroupMembership(stepwise=stepwise)
        self.topics: Sequence[str] = ()
        """Those of the last `join`."""
        self._epochs = count(1)
        self._logs_seen: dict[str, LogId] = {}
        """The log of each topic that this client was assigned last."""
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

        It is called again for other topics, if the client takes these, or with a new client.
        """
        self._leave_by, self._closing, self.topics = None, False, topics
        self.group.subscribed()
        consumer.subscribe(list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)

    def leave(self, consumer: Consumer) -> None:
        """Wait until nothing is under way, for at most `lock_timeout`. Closing the consumer then revokes everything.

        The member takes part in rebalances meanwhile. A client that is closing ignores the answer to the JoinGroup that
        it has sent (`rd_kafka_cgrp_handle_JoinGroup`, 2.16), and Kafka takes no commit of the generation before: where
        two pods ended one after the other, nothing more of the second could be committed.
        """
        self._leave_by = time.monotonic() + self.lock_timeout
        self.choke(consumer, True)
        sources = [owned.partition for owned in self.owned_partitions.values()]
        release(sources, self._listener, self.lock_timeout, lambda: self._serve(consumer))
        self._closing = True

    def abandon(self) -> None:
        """Drop everything at once: the group does not know this member any more. The client is to be closed next."""
        self.rebalances["lost"] += 1
        self._listener.dropped([owned.partition for owned in self.owned_partitions.values()])
        self._leave_by, self._closing = time.monotonic(), True
        self.group.end_membership()

    def closed(self) -> None:
        """Forget what a client has left that was closed: it may not have revoked all of it."""
        self.owned_partitions.clear()
        self.put_off.clear()
        self._logs_seen.clear()
        self.client = ClientAssignment()

    def ask_membership(self) -> None:
        """Request a renewal of the membership, from any thread. It is replaced once that is done."""
        self.group.is_asked.set()

    def answer(self, consumer: Consumer) -> None:
        """Renew the membership if that was requested."""
        if self.group.is_asked.is_set():
            self._take_membership(consumer)

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start each partition at its committed offset."""
        self.rebalances["assigned"] += 1
        sources = [Partition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions]
        if self._leave_by is not None:
            self._hold(consumer, sources)
            return
        # Before the first fetch: an id that is asked for later may be that of another log than the one that is read.
        logs_now = self.starts.log_ids({source.topic for source in sources})
        logs_read = {source: logs_now.get(source.topic) for source in sources}
        self._compare_logs(logs_now)
        starts = self.starts.find_starts(consumer, logs_read, in_callback=True)
        for source in sources:
            self.owned_partitions[source] = OwnedPartition(source, WantedFetch(next(self._epochs)), logs_read[source])
        self.client.give(consumer, starts)
        self.reconcile(consumer)  # now: the same call of the client may return messages
        self.group.is_asked.clear()
        self.group.rebalanced(consumer, self._owned())
        self._begin_partitions(starts)
        self.put_off |= {source for source in sources if self.owned_partitions[source].awaits is not None}

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give the partitions up, once nothing of them is under way or `lock_timeout` is over.

        If the group does not wait for that, they may be another member's already: they are dropped at once.
        """
        self.rebalances["revoked"] += 1
        sources = [Partition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions]
        if not self._closing:
            self.group.revoked(consumer, given_away=self._give_up(consumer, sources))
        self._forget(consumer, sources)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Drop partitions that another consumer may own already; commit nothing of them."""
        self.rebalances["lost"] += 1
        sources = [Partition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions]
        self._listener.dropped(sources)
        self.group.lose()
        self._forget(consumer, sources)

    def take_wanted(self, consumer: Consumer, partition: Partition, wanted: WantedFetch) -> None:
        """Take in how the lane wants a partition to be fetched, and seek if it wants that. Then call `reconcile`."""
        owned = self.owned_partitions.get(partition)
        if owned is None or owned.epoch != wanted.epoch:
            return
        is_sought = wanted.is_fetched and wanted.seek_count != owned.seek_count
        owned.wanted = wanted
        self.client.doubt_fetch(partition)
        if is_sought:
            self.seek(consumer, owned, wanted.offset)

    def choke(self, consumer: Consumer, is_choked: bool) -> None:
        """Have nothing fetched, as the lane has no room, or what the lane wants again."""
        self.client.choke(is_choked)
        self.reconcile(consumer)

    def reconcile(self, consumer: Consumer) -> None:
        """Make the client fetch what the lane wants. Call this before each request for messages."""
        self.client.reconcile_fetches(consumer, self.owned_partitions)

    def seek(self, consumer: Consumer, owned: OwnedPartition, offset: int) -> None:
        """Continue a partition at an offset."""
        owned.sought = offset
        with suppress(KafkaException):  # a partition whose error is still unread takes no seek
            consumer.seek(TopicPartition(*owned.partition, offset))
            return
        self._anew(consumer, [Start(owned.partition, offset, None)])

    def out_of_range(self, consumer: Consumer, wanted: Mapping[Partition, int]) -> None:
        """Continue partitions whose next offset is not in the log, all with the same requests.

        If a log was cut and begins after the offset, what was read stays under way, and only unread records are lost.
        If a log ends before the offset (an unclean leader election, or the topic was created again), the partition
        gets a new epoch. It then continues at the group's progress. While Kafka does not say what the log holds, the
        same offset is requested again.
        """
        self.starts.leaders.reached(wanted)
        others = self._others(wanted)
        dropped = self._leave_to_restart(consumer, others)
        others -= dropped
        read = {source: self._next(source, at) for source, at in wanted.items() if source not in dropped}
        logs = self.starts.lookup(consumer)
        edges_of = edges(logs, read)
        cut = {source: edge for source, edge in edges_of.items() if read[source] < edge.low and source not in others}
        last = {
            source: at
            for source in read.keys() - cut.keys()
            if (at := self.owned_partitions[source].last_at_ms) is not None
        }
        another = others.union(recreated(logs, {source: (read[source], at) for source, at in last.items()}))
        short = {
            source: edge for source, edge in edges_of.items() if read[source] > edge.high and source not in another
        }
        for source, edge in (cut | short).items():
            log_loss(source, read[source], edge)
        self._cut(consumer, cut, read)
        # Another log may have grown beyond the offset meanwhile.
        restarted = self._restart_others(
            consumer, {source: edges_of[source] for source in another if source in edges_of}
        )
        restarted |= self._go_back(consumer, logs, short)
        again = read.keys() - cut.keys() - restarted
        self._anew(consumer, [Start(source, read[source], None) for source in read if source in again])

    def take_up_recreated(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        """Take up partitions whose logs now belong to other topics of the same names: from their beginning."""
        if others := sorted(set(sources) - self._leave_to_restart(consumer, sources)):
            self._restart_others(consumer, edges(self.starts.lookup(consumer), others))

    def repeat_takeover(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        """Begin with partitions once more, at the group's progress, as what the lane knows of them is not true now."""
        mine = [source for source in sources if source in self.owned_partitions]
        starts = self.starts.find_starts(consumer, self._logs_of(mine))
        self._restart(consumer, dict.fromkeys(mine, sys.maxsize), starts)  # nothing is lost: it comes again

    def learn(self, consumer: Consumer, firsts: Mapping[Partition, int]) -> None:
        """Report to the lane where awaited partitions start, at their first messages, which have these offsets.

        All of them are fetched again: from their first messages, or from where they start by what Kafka says now. The
        requests are for all of these partitions together, and for others that wait: nothing is polled meanwhile.
        """
        owned_partitions = [owned for source in firsts if (owned := self.owned_partitions.get(source)) is not None]
        starts = [owned.awaits for owned in owned_partitions if owned.awaits is not None]
        self.starts.leaders.reached(firsts)
        if any(start.offset == OFFSET_STORED for start in starts):
            self._start_others(consumer)
        known = [_at(start, firsts[start.partition]) for start in starts if start.offset in LOG_EDGES]
        asked = {start.partition for start in starts if start.offset not in LOG_EDGES} | self._at_numbers()
        # Of some Kafka may not say it yet, or the client began at an offset of a former log of that name.
        found = self.starts.find_starts(consumer, self._logs_of(asked)) if asked else []
        self._anew(consumer, [*known, *found])
        self._begin_partitions([*known, *found])

    def request_offsets(self, consumer: Consumer, now: float) -> None:
        """Find out where partitions start that the callback has put off, and make the client request the next offset.

        `now`: monotonic seconds.
        """
        if self.put_off:
            self._start_put_off(consumer)
        self.client.next_turn(consumer, now)

    def without_offset(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        """Find out where awaited partitions start that have no committed offset, by the client's reports."""
        if not sources:
            return
        told = [source for source in sources if self.client.has_no_offset(source)]
        awaits = [self.owned_partitions[source].awaits for source in sources if source not in told]
        starts = [start for start in awaits if start is not None] + (
            self.starts.find_starts(consumer, self._logs_of(told)) if told else []
        )
        self._anew(consumer, starts)
        self._begin_partitions(starts)
        if told:
            self._start_others(consumer)

    def _give_up(self, consumer: Consumer, sources: Sequence[Partition]) -> bool:
        """Give revoked partitions up; return whether the group did not wait for that."""
        if self.group.is_overtaken(consumer):
            drop_given_away(sources, self._listener)
            return True
        self._take_membership(consumer)  # the last transactions of these partitions need the present generation
        within = self.lock_timeout if self._leave_by is None else self._leave_by - time.monotonic()
        return release(sources, self._listener, within, lambda: self.group.has_moved_on(consumer))

    def _serve(self, consumer: Consumer) -> bool:
        """Let the client call back, and drop what it has read; False: what a rebalance takes away is dropped there."""
        self.answer(consumer)
        consumer.consume(LEFT_OVER, 0)
        return False

    def _hold(self, consumer: Consumer, sources: Sequence[Partition]) -> None:
        """Take partitions that the group gives to a member that is about to leave, and read nothing of them."""
        self.client.give(consumer, [Start(source, OFFSET_END, None) for source in sources])
        consumer.pause([TopicPartition(*source) for source in sources])
        self.group.is_asked.clear()
        self.group.rebalanced(consumer, self._owned())

    def _next(self, source: Partition, offset: int) -> int:
        """Return the offset that was to be read next. `offset`: by an error, which may be older than the last seek."""
        sought = self.owned_partitions[source].sought
        return offset if sought is None else min(offset, sought)

    def _cut(self, consumer: Consumer, edges_of: Mapping[Partition, Edges], wanted: Mapping[Partition, int]) -> None:
        self._anew(consumer, [Start(source, edge.low, None) for source, edge in edges_of.items()])
        for source, edge in edges_of.items():
            self.owned_partitions[source].sought = edge.low
            self._listener.cut(source, self.owned_partitions[source].epoch, wanted[source], edge.low)

    def _compare_logs(self, logs_now: Mapping[str, LogId]) -> None:
        """Ask for a restart if a topic is assigned again whose former log this client knows.

        It may never read the new one: the leaders' epochs begin at 0 again, and it takes them for out of date.
        """
        for topic, log in logs_now.items():
            if is_recreated(self._logs_seen.get(topic), log):
                self._ask_restart(RestartCause(RestartReason.TOPIC_RECREATED, topic, "/".join(log)))
        self._logs_seen.update(logs_now)

    def _leave_to_restart(self, consumer: Consumer, sources: Collection[Partition]) -> set[Partition]:
        """Drop the partitions of recreated topics for which the process restarts; commit nothing of them.

        The client keeps them until the group is left, and what it reads of them is passed over. The topic's id in the
        progress has the next start begin at the beginning of the new log.
        """
        logs_now = self.starts.log_ids({source.topic for source in sources}) if sources else {}
        restarting = {
            topic
            for topic, log in logs_now.items()
            if self._ask_restart(RestartCause(RestartReason.TOPIC_RECREATED, topic, "/".join(log)))
        }
        mine = {
            owned.partition
            for owned in self.owned_partitions.values()
            if owned.partition.topic in restarting and is_recreated(owned.log, logs_now[owned.partition.topic])
        }
        if mine:
            self._listener.dropped(sorted(mine))
            for source in mine:
                del self.owned_partitions[source]
            self.put_off -= mine
            self._take_membership(consumer)
        return mine

    def _restart_others(self, consumer: Consumer, edges_of: Mapping[Partition, Edges]) -> set[Partition]:
        for source in edges_of:
            log_recreated(source)
        kept = dict.fromkeys(edges_of, 0)  # nothing that was begun is in the new log
        known = {source: untouched(edge.low) for source, edge in edges_of.items()}
        return self._restart(consumer, kept, _starts_at(known))

    def _go_back(self, consumer: Consumer, logs: OffsetLookup, edges_of: Mapping[Partition, Edges]) -> set[Partition]:
        kept = {source: edge.high for source, edge in edges_of.items()}
        return self._restart(
            consumer, kept, _starts_at(self.starts.after_truncation(logs, edges_of) if edges_of else {})
        )

    def _restart(self, consumer: Consumer, kept: Mapping[Partition, int], starts: Sequence[Start]) -> set[Partition]:
        """Read logs from other offsets, as new assignments of their partitions. Return these partitions.

        `kept`: the offset below which what was begun is still in the log.
        """
        if not starts:
            return set()
        sources = [start.partition for start in starts]
        logs_now = self.starts.log_ids({source.topic for source in sources})
        for source in sources:
            self._listener.truncated(source, kept[source])
            owned = self.owned_partitions[source]
            owned.log = logs_now.get(source.topic)
            owned.wanted, owned.sought = WantedFetch(next(self._epochs)), None
            owned.told_end = False
        self._anew(consumer, starts)
        self._take_membership(consumer)
        self._begin_partitions(starts)
        return set(sources)

    def _forget(self, consumer: Consumer, sources: Collection[Partition]) -> None:
        self.client.take_back(consumer, sources)
        for source in sources:
            self.owned_partitions.pop(source, None)
        self.put_off.difference_update(sources)
        if self._closing:
            # Nothing more is committed. The client may end with its last partition; it then never answers and holds the
            # GIL: with Kafka unreachable the whole process stood still (2.16).
            self.group.end_membership()
        else:
            self._take_membership(consumer)

    def _take_membership(self, consumer: Consumer) -> None:
        self.group.is_asked.clear()
        self.group.take_metadata(consumer, self._owned())

    def _owned(self) -> dict[Partition, int]:
        return {owned.partition: owned.epoch for owned in self.owned_partitions.values()}

    def _logs_of(self, sources: Collection[Partition]) -> dict[Partition, LogId | None]:
        return {source: self.owned_partitions[source].log for source in sources}

    def _others(self, sources: Collection[Partition]) -> set[Partition]:
        """Return the partitions whose log is another one than was read, by the ids of their topics."""
        named = {source: log for source, log in self._logs_of(sources).items() if log is not None}
        logs_now = self.starts.log_ids({source.topic for source in named})
        return {source for source, log in named.items() if is_recreated(log, logs_now.get(source.topic))}

    def _at_numbers(self) -> set[Partition]:
        """Return the awaited partitions that the client reads from an offset which is only to be checked."""
        waits = {owned.partition: owned.awaits for owned in self.owned_partitions.values()}
        return {source for source, start in waits.items() if start is not None and start.offset >= 0}

    def _start_put_off(self, consumer: Consumer) -> None:
        awaits = [start for source in self.put_off if (start := self.owned_partitions[source].awaits) is not None]
        self.put_off.clear()
        given = {start.partition: start.offset for start in awaits}
        stored = [source for source, offset in given.items() if offset == OFFSET_STORED]
        others = [source for source, offset in given.items() if offset != OFFSET_STORED]
        # An open transaction may hold the stored offsets back. The callback has waited for it, and the client goes on.
        found = [
            *self.starts.find_starts(consumer, self._logs_of(others)),
            *self.starts.find_starts(consumer, self._logs_of(stored), patient=False),
        ]
        known = [start for start in found if start.progress is not None]
        self._anew(consumer, [start for start in known if start.offset != given[start.partition]])
        self._begin_partitions(known)

    def _start_others(self, consumer: Consumer) -> None:
        """Start what the end of the same transaction has set free: the offsets of a dead pod come back together."""
        if waiting := list(self.client.waiting):
            starts = self.starts.find_starts(consumer, self._logs_of(waiting), patient=False)
            known = [start for start in starts if start.offset != OFFSET_STORED]
            self._anew(consumer, known)
            self._begin_partitions(known)

    def _anew(self, consumer: Consumer, starts: Sequence[Start]) -> None:
        """Make the client fetch partitions from other offsets."""
        if starts:
            self.client.give_anew(consumer, starts)

    def _begin_partitions(self, starts: Collection[Start]) -> None:
        """Report to the lane which partitions start where.

        Call this after the membership is taken: the lane may commit at once.
        """
        grants = []
        for start in starts:
            owned = self.owned_partitions[start.partition]
            owned.awaits = start if start.progress is None else None
            if start.progress is not None:
                owned.last, owned.last_at_ms = start.progress.next - 1, start.progress.last_at_ms or None
                owned.sought = start.progress.next
                self.client.started(start.partition)
                owned.log = owned.log or start.progress.log  # Kafka has not told: it is taken for the one that was read
                progress = replace(start.progress, log=owned.log)
                grants.append(AssignedPartition(start.partition, owned.epoch, progress, start.lost))
        if grants:
            self._listener.assigned(grants)


def _starts_at(known: Mapping[Partition, Progress]) -> list[Start]:
    return [Start(source, progress.next, progress) for source, progress in known.items()]


def _at(start: Start, offset: int) -> Start:
    """Return the start of a partition that begins at an edge of its log, by the offset of the first message there."""
    return start._replace(offset=offset, progress=untouched(offset, start.width))
