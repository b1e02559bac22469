"""Read the queues of a main lane: one thread that follows them, and reads single records again when they are due.

Who owns a main partition owns the queue partition of the same number, so nothing is subscribed here. A queue is opened
in three steps. The group's progress on it is requested, and an open transaction holds the answer back. Then its end is
requested, as of that moment, whatever is committed. Then it is read up to that end as far as it is committed: the last
transactions of a dead owner end meanwhile, and later ones are refused by their generation.

Where a queue does not exist, nothing waits in it, and the lane goes on without it. It is looked for again, more often
while a ladder is in force, and opened once it is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from queue import Empty, SimpleQueue
from typing import Protocol

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.core.lane.partition import AssignedPartition, FetchedRecords
from sidecar.core.policy import Policy
from sidecar.core.progress import Progress
from sidecar.core.record import Partition, Record
from sidecar.kafka.client_config import Properties, follower_config, whole_fetches
from sidecar.kafka.consumer.committed_offsets import committed
from sidecar.kafka.consumer.log_checks import end_of_done
from sidecar.kafka.credentials.new_client import new_client
from sidecar.kafka.credentials.registry import CredentialRegistry
from sidecar.kafka.few_messages import next_messages
from sidecar.kafka.messages import to_record
from sidecar.kafka.named_topics import named_topics
from sidecar.kafka.queues.log_watch import LogWatch, ReadSoFar
from sidecar.kafka.queues.offset_reads import Payloads, RecentRecords, closed
from sidecar.kafka.queues.own_appends import OwnAppends
from sidecar.kafka.queues.queue_reading import QueueReading, name_cut, name_missing, queue_reading_of, started
from sidecar.observability.thread_watch import StopRequest
from topics.attempt import retry_state_of

POLL, BUSY_POLL = 0.05, 0.005
"""Seconds of a wait for records, and while records are being read by their offsets. A request by another thread waits
so long at most."""
IDLE = 1.0
"""Seconds between two turns while there is no queue to read; a command comes at once."""
AT_ONCE = 4
"""Messages that one call may return, as in a lane: each call gives the interpreter away."""
RETRY_EVERY = 0.3
"""Seconds before a queue that cannot be opened is tried again."""
EDGES_WITHIN = 2.0
"""Seconds for the request for the ends of a log."""
SLOW = EDGES_WITHIN / 2
"""Seconds after which a request that failed has kept the thread from reading, so that no other is sent in that look."""
LOOK_SELDOM = 10.0
"""Seconds between two looks for a queue that was missing, in a group without a ladder: redrives and instances with one
may write to it as soon as it is made."""
SURE_AFTER = 5.0
"""Seconds for which a queue must be missing, in a group with a ladder, before the lane goes on without it: a broker may
not know yet of a topic that was made a moment ago, in which a former owner may have written."""
PATIENCE = 0.05
"""Seconds of a turn in which what the lane does not know yet waits for the lane. Mostly that is a copy that it has
written itself, and whose commit it learns at the same time. To parse it and to hand it over takes long."""
LATE = 30.0
"""Seconds after which a queue that cannot be opened, or read up to its end, is named in the log."""

NO_PARTITION = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
"""Answers by which a partition does not exist."""

_LOG = logging.getLogger("reconsume.queues")


class QueueListener(Protocol):
    """The receiver of what was read; calls are made on the reader's thread and must return at once."""

    def queue_opened(self, grant: AssignedPartition) -> None:
        """Begin with a queue."""

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        """Go on without a queue: there is no such partition."""

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        """Reckon with what was not read yet being gone: the log begins later now, and ends at `end`."""

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        """Take over what lies in a queue."""

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        """Take over a record that was read by its offset; None: it is gone."""

    def queue_full(self) -> bool:
        """Return whether nothing more may be handed over for now."""


class QueueThread(threading.Thread):
    """Port `QueueReads` on Kafka. `group`: the one that commits the queues' progress. `room`: bytes of the cache.

    `missing`: returns which of some topics do not exist, or None if Kafka does not tell. In a group without a ladder it
    is asked before there is a client: without queues there is none.
    """

    def __init__(
        self,
        kafka: Properties,
        group: str,
        client_id: str,
        listener: QueueListener,
        policy: Callable[[], Policy],
        registry: CredentialRegistry,
        room: int,
        missing: Callable[[frozenset[str]], frozenset[str] | None],
        appends: OwnAppends,
    ) -> None:
        super().__init__(name=f"queues-{group}", daemon=True)
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self.last_error = ""
        config = whole_fetches(follower_config(kafka, group, client_id))
        self._config: Mapping[str, object] = {**config, "auto.offset.reset": "error"}
        self._listener, self._reading, self._missing = listener, queue_reading_of(policy), missing
        self._policy = policy
        self._credentials = registry.register(self.name)
        self._stopping = StopRequest()
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._news: SimpleQueue[tuple[Partition, int, int]] = SimpleQueue()
        """Queues with their epochs, and up to where the lane knows them."""
        self._readings: dict[Partition, QueueReading] = {}
        self._recent = RecentRecords(room)
        self._appends, self._logs = appends, LogWatch()
        self._payloads = Payloads(self._arrived, self._passed, self._gone)
        self._has_both = False
        self._following: Consumer
        self._reader: Consumer
        """The clients, once they are made: one reads what is committed, the other what there is."""
        self._open_at = 0.0
        self._had_ladder = False
        """Whether the group had a ladder since the start: a former owner may have written to any queue then."""

    @property
    def turned_at(self) -> float:
        """When the thread last began a turn (monotonic seconds)."""
        return self._stopping.turned_at

    # --- called from other threads -----------------------------------------------------------------------------------

    def open(self, queue: Partition, epoch: int) -> None:
        """Read a queue (port `QueueReads`)."""
        self._commands.put(lambda: self._open(queue, epoch))

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        """Read one record by its offset (port `QueueReads`)."""
        record = self._recent.take(queue, offset, epoch)
        if record is not None:
            self._listener.queue_fetched(queue, epoch, offset, record)
        else:
            self._commands.put(lambda: self._want(queue, epoch, offset))

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
        """Hand over nothing below an offset (port `QueueReads`)."""
        self._recent.keep([record for record in at_hand if not retry_state_of(record).behind])
        self._recent.fill([record for record in at_hand if retry_state_of(record).behind])
        self._appends.read_up_to(queue, end)
        self._news.put((queue, epoch, end))

    def close(self, queue: Partition) -> None:
        """Read a queue no more (port `QueueReads`)."""
        self._commands.put(lambda: self._close(queue))

    def expect_queues(self) -> None:
        """Have one answer be no proof that a queue is missing: the group has a ladder, in force or not."""
        self._had_ladder = True

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._stopping.set()
        self._commands.put(None)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read until stopped, or until an error ends the thread."""
        try:
            while not self._stopping.is_set():
                self._turn()
        except BaseException as failure:  # noqa: BLE001 - a thread that fails must end the process, whatever the cause
            _LOG.exception("the thread that reads the queues has ended", extra={"event": "queues-ended"})
            self.failure = failure
        finally:
            self._drop_clients()

    def _turn(self) -> None:
        self._run_commands(wait=self._has_nothing())
        if due := self._open_at <= time.monotonic():
            self._look_for_unknown()
        if all(not reading.exists for reading in self._readings.values()) or not self._has_clients():
            self._stopping.wait(0 if self._has_nothing() else BUSY_POLL)
            return
        if due or self._open_at <= time.monotonic():
            self._open_more()
        self._look_at_logs()
        if not self._listener.queue_full():
            self._take(next_messages(self._following, BUSY_POLL if self._payloads else POLL, at_once=AT_ONCE))
        else:
            self._stopping.wait(BUSY_POLL)
        self._payloads.turn(self._reader, BUSY_POLL)

    def _has_nothing(self) -> bool:
        """Whether there is no queue to read, or to open soon."""
        return all(reading.absent for reading in self._readings.values())

    def _run_commands(self, *, wait: bool) -> None:
        try:
            while True:
                command = self._commands.get(block=wait, timeout=IDLE if wait else None)
                if command is not None:
                    command()
                wait = False
        except Empty:
            return

    def _has_clients(self) -> bool:
        """Make the clients if there are none, or others are to be made of newer credentials; False: a stop came."""
        if self._has_both and self._credentials.apply_to(self._following, self._reader):
            return True
        self._drop_clients()
        made = new_client(Consumer, self._config, self._credentials, self._stopping)
        other = {**self._config, "isolation.level": "read_uncommitted"}
        reader = None if made is None else new_client(Consumer, other, self._credentials, self._stopping)
        if made is None or reader is None:
            closed(made)
            return False
        self._following, self._reader, self._has_both = made, reader, True
        self._payloads.begin_anew()
        positions = [TopicPartition(*queue, one.position) for queue, one in self._readings.items() if one.position >= 0]
        self._following.assign(positions)
        return True

    def _drop_clients(self) -> None:
        if self._has_both:
            closed(self._following)
            closed(self._reader)
            self._has_both = False

    # --- queues come and go ------------------------------------------------------------------------------------------

    def _open(self, queue: Partition, epoch: int) -> None:
        self._close(queue)
        self._readings[queue] = QueueReading(epoch, time.monotonic(), exists=self._policy().queued)
        self._open_at = 0.0

    def _close(self, queue: Partition) -> None:
        reading = self._readings.pop(queue, None)
        self._payloads.forget(queue)
        self._recent.forget(queue)
        self._appends.forget(queue)
        self._logs.forget(queue)
        if reading is not None and reading.position >= 0 and self._has_both:
            self._following.incremental_unassign([TopicPartition(*queue)])

    def _look_for_unknown(self) -> None:
        """Find out which queues exist, in a group without a ladder, or that had none when they were looked for."""
        unknown = {queue: one for queue, one in self._readings.items() if not one.exists and self._needs(one)}
        if not unknown:
            return
        self._open_at = time.monotonic() + RETRY_EVERY
        absent = self._missing(frozenset(queue.topic for queue in unknown))
        for queue, reading in unknown.items():
            if absent is None:
                reading.doubt()
            elif queue.topic in absent:
                self._miss(queue, reading)
            else:
                reading.doubt()
                reading.exists, self._open_at = True, 0.0

    def _needs(self, reading: QueueReading) -> bool:
        """Return whether a queue that is not open is to be looked for now.

        One that was absent is looked for without a ladder too: redrives, other instances, and copies that were refused
        before the ladder ended may be written there (5.5).
        """
        if not reading.absent:
            return True
        return time.monotonic() >= reading.looked_at + (IDLE if self._policy().queued else LOOK_SELDOM)

    def _miss(self, queue: Partition, reading: QueueReading) -> None:
        """Note that a queue does not exist; have the lane go on without it once that is sure."""
        now, is_wanted = time.monotonic(), self._policy().queued
        reading.missing_since, reading.looked_at = min(now, reading.missing_since), now
        if not is_wanted:
            reading.exists = False  # so that there is no client
        self._had_ladder = self._had_ladder or is_wanted
        if not reading.absent and (not self._had_ladder or now >= reading.missing_since + SURE_AFTER):
            reading.absent = True
            if is_wanted:
                name_missing(queue)
            self._listener.queue_absent(queue, reading.epoch)

    def _open_more(self) -> None:
        """Open the queues whose progress, and whose end, Kafka tells."""
        self._open_at = time.monotonic() + RETRY_EVERY
        waiting = {
            queue: reading
            for queue, reading in self._readings.items()
            if reading.position < 0 and reading.exists and self._needs(reading)
        }
        progress_of = committed(self._following, list(waiting), patient=False) if waiting else {}
        silent, edges = False, dict[Partition, tuple[int, int]]()
        for queue, reading in sorted(waiting.items(), key=lambda item: item[1].asked_at):
            if queue not in progress_of:
                reading.doubt()
            elif not silent:  # one leader that does not answer takes seconds, in which nothing else is read
                edge, silent = self._edges_of(queue, reading)
                edges |= {} if edge is None else {queue: edge}
        # Behind the question for the ends: what was empty then, and is another log, is seen to be another one now.
        of_these = self._logs.of_these_logs(self._reader, {queue: progress_of[queue] for queue in edges})
        for queue in edges.keys() & of_these.keys():
            self._begin(queue, self._readings[queue], of_these[queue], edges[queue])
        missed = {queue.topic for queue, reading in waiting.items() if reading.missing_since < inf}
        for client in (self._following, self._reader) if missed else ():
            named_topics(client, missed, EDGES_WITHIN)  # else it would hold for minutes what was true of them before
        self._open_at = max(self._open_at, time.monotonic() + RETRY_EVERY) if silent else self._open_at
        self._name_late()

    def _name_late(self) -> None:
        for queue, reading in self._readings.items():
            late = time.monotonic() - reading.since > LATE
            if late and not (reading.caught_up or reading.named or reading.absent):
                reading.named = True
                text = "%s is not read up to its end yet, so nothing of its main partition is delivered: %s"
                why = self.last_error or (
                    "a transaction is open" if reading.position >= 0 else "its offsets are unknown"
                )
                _LOG.warning(text, queue, why, extra={"event": "queue-unread", "partition": str(queue)})

    def _edges_of(self, queue: Partition, reading: QueueReading) -> tuple[tuple[int, int] | None, bool]:
        """Return where the log of a queue begins and ends, and whether the answer was waited for in vain."""
        reading.asked_at = time.monotonic()
        try:
            low, high = self._reader.get_watermark_offsets(TopicPartition(*queue), timeout=EDGES_WITHIN, cached=False)
        except KafkaException as failure:
            self.last_error = str(failure.args[0])
            if failure.args[0].code() in NO_PARTITION:  # the topic is missing, or narrower than the main topic
                self._miss(queue, reading)
                return None, False
            low = high = OFFSET_INVALID
        if low == OFFSET_INVALID or high == OFFSET_INVALID:
            reading.doubt()
            return None, time.monotonic() >= reading.asked_at + SLOW  # what is refused at once keeps no other waiting
        return (low, high), False

    def _begin(
        self, queue: Partition, reading: QueueReading, progress: Progress | None, edges: tuple[int, int]
    ) -> None:
        """Begin to read a queue, whose log had these edges."""
        start = started(queue, progress, *edges)
        if reading.absent:
            reading.absent, reading.since = False, time.monotonic()
        reading.position, reading.end, reading.missing_since = start.next, edges[1], inf
        reading.last_at_ms = start.last_at_ms
        self._logs.begin(queue, ReadSoFar(end_of_done(start), start.last_at_ms or 0))
        self._following.incremental_assign([TopicPartition(*queue, start.next)])
        self._listener.queue_opened(AssignedPartition(queue, reading.epoch, start))
        self._hand_over(queue, reading, [], None)

    def _want(self, queue: Partition, epoch: int, offset: int) -> None:
        reading = self._readings.get(queue)
        if reading is not None and reading.epoch == epoch:
            self._payloads.want(queue, offset)

    # --- what is read ------------------------------------------------------------------------------------------------

    def _take(self, messages: Iterable[Message]) -> None:
        runs: dict[Partition, list[Record]] = {}
        ends: dict[Partition, int] = {}
        known = set[Partition]()
        until = time.monotonic() + PATIENCE
        for message in messages:
            source = Partition(message.topic() or "", message.partition() or 0)
            reading, error, offset = self._readings.get(source), message.error(), message.offset()
            if reading is None or offset is None:
                continue
            if error is None and offset >= reading.position:
                reading.last_at_ms = max(reading.last_at_ms or 0, message.timestamp()[1])
                if self._is_known(reading, offset, until):
                    known.add(source)
                else:
                    record = to_record(message, source, reading.epoch, self._reading)
                    runs.setdefault(source, []).append(record)
                reading.position = offset + 1
            elif error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ends[source] = reading.position = max(reading.position, offset)
                else:
                    self._on_error(source, reading, error)
        # A copy of ours is known before it is committed: nothing that was read with it, or behind it, is handed over.
        if others := self._appends.others():
            raise RuntimeError(f"{others[0]} was made anew: a copy was appended below what was read of it")
        self._recent.keep([record for records in runs.values() for record in records])
        for source in runs.keys() | ends.keys() | known:
            if (reading := self._readings.get(source)) is not None:
                self._hand_over(source, reading, runs.get(source, []), ends.get(source))

    def _is_known(self, reading: QueueReading, offset: int, until: float) -> bool:
        """Return whether the lane knows what lies at an offset; if it does not, wait a while for it to say so.

        Where records are being read by their offsets, that is more urgent.
        """
        may_wait = reading.caught_up and not self._payloads
        while offset >= reading.known_to:
            patience = max(0, until - time.monotonic()) if may_wait else 0
            try:
                queue, epoch, end = self._news.get(block=patience > 0, timeout=patience)
            except Empty:
                return False
            if (known := self._readings.get(queue)) is not None and known.epoch == epoch:
                known.known_to = end
        return True

    def _hand_over(self, queue: Partition, reading: QueueReading, records: list[Record], end: int | None) -> None:
        """Hand over what was read; nothing is handed over for an end of the log that says nothing new.

        Nor for what the lane knows, but for the time up to which the log is the same (`LogWatch.last_at_ms`): where
        more comes without a pause, the client reports no end, and the progress would say that nothing was read.
        """
        caught_up, new_end = reading.position >= reading.end, end is not None and end > reading.known_end
        at_ms = self._logs.last_at_ms(queue, reading.read)
        if records or new_end or at_ms != reading.told_at_ms or (caught_up and not reading.caught_up):
            reading.caught_up = reading.caught_up or caught_up
            reading.known_end = reading.known_end if end is None else end
            reading.told_at_ms = at_ms
            self._appends.read_up_to(queue, reading.position)
            run = FetchedRecords(queue, reading.epoch, 0, records, end, last_at_ms=at_ms)
            self._listener.queue_read(run, reading.caught_up)

    def _on_error(self, queue: Partition, reading: QueueReading, error: KafkaError) -> None:
        self.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            raise KafkaException(error)
        _LOG.warning("%s: %s", queue, self.last_error, extra={"event": "kafka-error"})
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        low, high = self._reader.get_watermark_offsets(TopicPartition(*queue), timeout=EDGES_WITHIN, cached=False)
        if high < reading.position:  # what the lane knows of the queue is of another log: it must be read anew
            raise RuntimeError(f"{queue} ends at {high}, before what was read: it was cut short, or made anew")
        name_cut(queue, reading.position, low)
        reading.position = max(low, reading.position)
        self._listener.queue_cut(queue, reading.epoch, high)
        self._following.incremental_unassign([TopicPartition(*queue)])
        self._following.incremental_assign([TopicPartition(*queue, reading.position)])

    def _look_at_logs(self) -> None:
        """Raise RuntimeError if a queue is another log than was read, or is no more: what the lane knows of it is of
        that log, so it must be read anew."""
        if not self._logs.is_time():
            return
        read = {queue: one.read for queue, one in self._readings.items() if one.position >= 0}
        if renewed := self._logs.others(self._reader, read):
            raise RuntimeError(f"{renewed[0]} was made anew: it begins with what is younger than what was read of it")
        self._logs.look_for(self._reader, read)
        for queue in self._logs.doubtful():
            if self._exists(queue):
                self._logs.is_there(queue)
            elif self._logs.is_gone(queue):
                raise RuntimeError(f"{queue} was deleted while it was read")

    def _exists(self, queue: Partition) -> bool:
        """Return whether a queue exists; True if Kafka does not say."""
        try:
            self._reader.get_watermark_offsets(TopicPartition(*queue), timeout=EDGES_WITHIN, cached=False)
        except KafkaException as failure:
            return failure.args[0].code() not in NO_PARTITION
        return True

    def _arrived(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            record = to_record(message, queue, reading.epoch, self._reading)
            self._listener.queue_fetched(queue, reading.epoch, record.offset, record)

    def _passed(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            self._recent.keep([to_record(message, queue, reading.epoch, self._reading)])

    def _gone(self, queue: Partition, offset: int) -> None:
        if (reading := self._readings.get(queue)) is not None:
            text = "%s: the record at %d is gone from the queue before it was delivered"
            extra = {"event": "queue-lost", "partition": str(queue), "offset": offset}
            _LOG.error(text, queue, offset, extra=extra)
            self._listener.queue_fetched(queue, reading.epoch, offset, None)
