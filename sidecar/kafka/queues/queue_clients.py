"""The two clients of the thread that reads queues, what it reads by offset with one of them, and a cache of that.

`following` reads what is committed, from where the group has read each queue to. `reader` reads single records, and
asks; it waits for no open transaction, as what it reads is known to be committed. While no queue exists there are none.

A record that is due is read again by its offset (`RecordReads`), and what follows it of its key ahead of that. A cache
keeps what was read ahead, and what was read or written last (`RecentRecords`); the event loop asks it first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import inf

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.clients import ClientCredentials, new_client
from reconsume.sidecar.kafka.cut_off import CutOffWatch
from reconsume.sidecar.kafka.scan import next_messages
from reconsume.sidecar.observability.thread_watch import StopRequest

FAR = 200
"""Offsets. Records that lie closer together are read on the way; beyond it a seek is cheaper."""
REST = 0.2
"""Seconds for which the client stays where it has read if nothing is wanted. What is wanted of a key that drains lies
just behind; to place the client anew takes some ten ms, and fetches a megabyte."""
DOUBTS = 2
"""How often a record must not be where it lay before it counts as gone: what was fetched for another offset may arrive
late."""
LOOK_EVERY = 10.0
"""Seconds between two looks whether Kafka answers the clients (`CutOffWatch`)."""

_LOG = logging.getLogger("reconsume.queues")


class RecentRecords:
    """The records that were read last, by offset; for any thread. `room`: bytes."""

    def __init__(self, room: int) -> None:
        self._room, self._weight = room, 0
        self._records: OrderedDict[tuple[Partition, int], Record] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, records: Sequence[Record]) -> None:
        """Keep records while there is room for them; the oldest go first."""
        with self._lock:
            for record in records:
                self._put(record)
            while self._weight > self._room:
                self._weight -= self._records.popitem(last=False)[1].weight

    def fill(self, records: Sequence[Record]) -> None:
        """Keep records while there is free room: they push out no other.

        Thousands may be written behind one head, and what is due must be here, whenever that head goes.
        """
        with self._lock:
            for record in records:
                if self._weight + record.weight > self._room:
                    return
                self._put(record)

    def _put(self, record: Record) -> None:
        before = self._records.pop((record.source, record.offset), None)
        self._records[record.source, record.offset] = record
        self._weight += record.weight - (0 if before is None else before.weight)

    def missing(self, source: Partition, offsets: Sequence[int]) -> list[int]:
        """Return those of these offsets whose records are not here."""
        with self._lock:
            return [offset for offset in offsets if (source, offset) not in self._records]

    def take_record(self, source: Partition, offset: int, epoch: int) -> Record | None:
        """Remove and return a record; None if it is not here."""
        with self._lock:
            record = self._records.pop((source, offset), None)
            if record is not None:
                self._weight -= record.weight
        return record if record is not None and record.epoch == epoch else None

    def forget(self, source: Partition) -> None:
        """Forget the records of a queue."""
        with self._lock:
            for key in [key for key in self._records if key[0] == source]:
                self._weight -= self._records.pop(key).weight


class RecordReads:
    """The records that are to be read by their offsets, on one client; used on one thread. `recent`: the cache, which
    gets what is read ahead.

    `arrived` gets each message that was asked for, `read_ahead` each other one that was wanted, and `gone` the offset
    of one that was asked for and is not in its log any more. What is asked for goes first. The records of one key lie
    one behind another, so the client reads on where it is, and rests there: to seek for each of them took 15 ms.
    """

    def __init__(
        self,
        recent: RecentRecords,
        arrived: Callable[[Partition, Message], None],
        read_ahead: Callable[[Partition, Message], None],
        gone: Callable[[Partition, int], None],
    ) -> None:
        self.recent = recent
        self._arrived, self._read_ahead, self._gone = arrived, read_ahead, gone
        self.wanted: dict[Partition, dict[int, bool]] = {}
        """The offsets that are to be read, and whether each was asked for, or is read ahead. No empty ones."""
        self._at: dict[Partition, int] = {}
        """The next offset that the client reads, of each partition that it has."""
        self._rests_until = 0.0
        """When the client leaves its partitions if nothing is wanted (monotonic seconds)."""
        self._doubts: Counter[tuple[Partition, int]] = Counter()

    def __bool__(self) -> bool:
        return bool(self.wanted or self._at)

    def want(self, queue: Partition, offset: int) -> None:
        """Have a record read."""
        self.wanted.setdefault(queue, {})[offset] = True

    def want_ahead(self, queue: Partition, offsets: Sequence[int]) -> None:
        """Have records read for the cache."""
        for offset in self.recent.missing(queue, offsets):  # some may have been read just now
            self.wanted.setdefault(queue, {}).setdefault(offset, False)

    def forget(self, queue: Partition) -> None:
        """Read nothing more of a queue."""
        for offset in self.wanted.pop(queue, ()):
            self._doubts.pop((queue, offset), None)
        self.recent.forget(queue)

    def forget_positions(self) -> None:
        """Take note that the client is another one."""
        self._at.clear()

    def turn(self, client: Consumer, timeout: float) -> None:
        """Read for up to `timeout` seconds, or until nothing that is wanted of a partition lies further on."""
        now = time.monotonic()
        if self.wanted:
            self._rests_until = now + REST
        if self.wanted or now >= self._rests_until:
            self._place(client)
        last = {source: max(wanted) for source, wanted in self.wanted.items()}
        for message in next_messages(client, timeout) if self.wanted else ():
            source = Partition(message.topic() or "", message.partition() or 0)
            if source in self._at:
                self._take(client, source, message)
            if self._at.get(source, inf) > last.get(source, -1):
                return

    def _place(self, client: Consumer) -> None:
        """Have the client read where the next wanted record of each partition lies."""
        for source in [source for source in self._at if source not in self.wanted]:
            self._leave(client, source)
        for source, wanted in self.wanted.items():
            first, at = _first(wanted), self._at.get(source)
            if at is None or not first - FAR <= at <= first:
                self._leave(client, source)
                client.incremental_assign([TopicPartition(*source, first)])
                self._at[source] = first

    def _leave(self, client: Consumer, source: Partition) -> None:
        if self._at.pop(source, None) is not None:
            client.incremental_unassign([TopicPartition(*source)])

    def _take(self, client: Consumer, source: Partition, message: Message) -> None:
        error, offset = message.error(), message.offset()
        wanted = self.wanted.get(source, {})
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() == KafkaError._AUTO_OFFSET_RESET and wanted:
                self._miss(source, _first(wanted))
            self._leave(client, source)
            return
        assert offset is not None  # a consumed message has one, and so has the end of a log
        for passed in [one for one in wanted if self._at[source] <= one < offset]:
            self._miss(source, passed)
        self._at[source] = offset + (error is None)
        # Only what lies below the end of the log was passed. A record at the end, or behind it, was committed there,
        # and a leader that was elected just now may not know that yet (KIP-207): it comes when the leader does.
        if error is None and offset in wanted:
            self._doubts.pop((source, offset), None)
            (self._arrived if wanted[offset] else self._read_ahead)(source, message)
            self._drop(source, offset)

    def _miss(self, source: Partition, offset: int) -> None:
        """Take in that a record was not where it lay: one that is read ahead is left to who asks for it."""
        if self.wanted[source][offset]:
            self._doubts[source, offset] += 1
            if self._doubts[source, offset] < DOUBTS:
                return
            del self._doubts[source, offset]
            self._gone(source, offset)
        self._drop(source, offset)

    def _drop(self, source: Partition, offset: int) -> None:
        wanted = self.wanted[source]
        del wanted[offset]
        if not wanted:
            del self.wanted[source]


def _first(wanted: Mapping[int, bool]) -> int:
    """Return the lowest offset that was asked for; if none was, the lowest that is read ahead."""
    return min([offset for offset, is_asked in wanted.items() if is_asked] or wanted)


class QueueClients:
    """The clients of one reader of queues, on its thread. In a group without queues there are none."""

    def __init__(self, config: Mapping[str, object], credentials: ClientCredentials, stopping: StopRequest) -> None:
        self._config, self._credentials, self._stopping = dict(config), credentials, stopping
        self._has_both = False
        self._followed = set[Partition]()
        """The queues that `following` is assigned."""
        self.following: Consumer
        self.reader: Consumer
        self.last_error = ""
        self._cut_off_watch = CutOffWatch()
        self._look_at = 0.0
        """When Kafka is asked next whether it answers them (monotonic seconds)."""

    def are_ready(self, begin: Callable[[], None]) -> bool:
        """Make the clients if there are none, or others are needed (newer credentials, or one that is cut off).

        Return False if a stop came. `begin` is called once others were made, which read nothing yet.
        """
        if self._has_both and self._credentials.apply_to(self.following, self.reader) and not self._are_cut_off():
            return True
        self.drop()
        made = new_client(Consumer, self._config, self._credentials, self._stopping)
        other = {**self._config, "isolation.level": "read_uncommitted"}
        reader = None if made is None else new_client(Consumer, other, self._credentials, self._stopping)
        if made is None or reader is None:
            close_client(made)
            return False
        self.following, self.reader, self._has_both = made, reader, True
        self._look_at = time.monotonic() + LOOK_EVERY
        begin()
        return True

    def _are_cut_off(self) -> bool:
        """Look now and then whether one of the clients has lost the cluster for good; log it."""
        if time.monotonic() < self._look_at:
            return False
        is_cut_off = self._cut_off_watch.look([self.following, self.reader], self._credentials.newest(self._config))
        self._look_at = time.monotonic() + LOOK_EVERY
        if is_cut_off:
            text = "a client that reads queues reaches no broker any more, while Kafka answers others: new ones read on"
            _LOG.warning(text, extra={"event": "client-replaced", "why": "cut-off"})
        return is_cut_off

    def keep_up(self) -> None:
        """Take newer credentials although nothing is read: what was made of former ones ends, and the clients of others
        get theirs only after this one (`CredentialWatcher`)."""
        if self._credentials.due:
            self.drop()
            self._credentials.adopt(self._config)

    def drop(self) -> None:
        """Close the clients, if there are any."""
        if self._has_both:
            close_client(self.following)
            close_client(self.reader)
            self._has_both = False
            self._followed.clear()

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        """Follow queues, none of which is followed, from these offsets on: 10 000 one by one take ten times as long."""
        if offsets:
            self.following.incremental_assign([TopicPartition(*queue, offset) for queue, offset in offsets.items()])
            self._followed.update(offsets)

    def leave(self, queue: Partition) -> None:
        """Follow a queue no more, if it was followed."""
        if queue in self._followed:
            self.following.incremental_unassign([TopicPartition(*queue)])
            self._followed.discard(queue)


def close_client(client: Consumer | None) -> None:
    """Close a client, whatever it says to that."""
    if client is not None:
        try:
            client.close()
        except (KafkaException, RuntimeError):
            return
