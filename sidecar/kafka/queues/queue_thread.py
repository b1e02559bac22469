"""Read the queues of a main lane: one thread that follows what is written there, and reads single records when due.

Who owns a main partition owns the queue partition of the same number, so nothing is subscribed to here: the lane opens
and closes queues (port `QueueReads`), each under the epoch of its main partition. The group's own consumer could be
given these partitions in its callbacks, and would fetch, pause and seek them (tried with both group protocols). But how
much a client fetches at a time is one setting for all of its topics: 4 KiB of a main topic, where any producer may
write a megabyte of zeros in 140 bytes, and 1 MiB of a topic with transactions, since of smaller fetches a broker may
leave out which records were aborted (`client_config.WHOLE`). Of 300 such records a client with 4 KiB took 74 MiB, and
one with 1 MiB took 296 (contract 13.3).

A queue is in one of these states (`QueueReading`):

    state      | what it means                                    | leaves to, when
    -----------|--------------------------------------------------|------------------------------------------------------
    sought     | nobody knows yet where the reading begins        | followed: Kafka says how far the group is, and where
               |                                                  | the log ends; missing: Kafka says that there is none
    missing    | there is no such queue; after `SURE_AFTER` the   | sought: it is there after all
               | lane goes on without it (contract 5.11)          |
    followed   | what is written comes to the lane; first up to   | closed
               | the end of the log at the opening (caught up)    |
    (closed)   | the lane has closed it, or it is another log     |

*Opening.* The group's progress is requested, and an open transaction holds that back. Then the end of the log is
requested as of that moment, whatever is committed. Then the queue is read up to that end as far as it is committed: the
last transactions of a dead owner end meanwhile, and later ones are refused by their generation.

*Missing.* In a group without a ladder one answer is enough, and as long as no queue exists there is no client. A queue
without which the lane went on, and that exists later, has the process restart in place; the start opens it.

*Single records* are read by their offsets: those that the lane fetches, and, into a cache, those that it fetches next.
A fetch of what is in the cache is answered at once.

*What the lane knows.* The lane takes in its own copies without having them read back, and tells up to where it knows a
queue (`known`). The reader passes what lies below without a look at the headers.

*Another log.* A topic that was deleted and recreated has another id. What the lane knows is of the former log, so the
process restarts in place. A log that ends before what was read is another one too. Progress names its log, so the start
reads the new one from its beginning. A queue that was deleted, and not recreated, is named, and its main partition is
taken over once more, without it.

Two clients: `following` reads what is committed; `reader` reads single records, and asks, without waiting for open
transactions. All of it runs on the thread, except the calls of the port.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import LogId, Progress, is_recreated
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.consumer.log_checks import Edges, Leaders, LogIds, OffsetLookup, edges, no_log_ids
from reconsume.sidecar.kafka.consumer.start_offsets import committed, name_cut, start_of_queue
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.sidecar.kafka.listeners import AskRestart, QueueListener, RestartCause, RestartReason, no_restart
from reconsume.sidecar.kafka.messages import queue_reading_of, to_record
from reconsume.sidecar.kafka.queues.queue_clients import QueueClients, RecentRecords, RecordReads
from reconsume.sidecar.kafka.scan import next_messages
from reconsume.sidecar.observability.thread_watch import StopRequest
from reconsume.topics.attempt import retry_state_of

POLL, BUSY_POLL = 0.05, 0.005
"""Seconds of a wait for records, and while records are being read by their offsets. A request by another thread waits
so long at most."""
IDLE = 1.0
"""Seconds between two turns while there is no queue to read; a command comes at once."""
AT_ONCE = 4
"""Messages that one call may return, as in a lane: each call gives the interpreter away."""
RETRY_EVERY = 0.3
"""Seconds before a queue that cannot be opened is tried again."""
LOOK_SELDOM = 2.0
"""Seconds between two looks for a queue that was missing, in a group without a ladder: redrives and instances with one
may write to it as soon as it is created."""
SURE_AFTER = 5.0
"""Seconds for which a queue must be missing, in a group with a ladder, before the lane goes on without it; one that was
read, before it counts as deleted. A broker may not know a topic yet that was made a moment ago, or may have started
just now."""
LATE = 30.0
"""Seconds after which a queue that cannot be opened, or read up to its end, is named in the log."""
ANSWER_WITHIN = 2.0
"""Seconds for the request for topics by their names."""
LOOK_AT_LOGS_EVERY = 5.0
"""Seconds between two looks whether the topics are still the ones that were read."""

_LOG = logging.getLogger("reconsume.queues")


class QueueHelp(NamedTuple):
    """What the reader asks of the rest of its process, on its thread.

    `policy`: returns the present one. `missing`: returns which of some topics do not exist, or None if Kafka does not
    tell. `log_ids`: which logs topics have. `ask_restart`: asks for a restart in place. `repeat_takeover`: has the main
    partition of a queue that was deleted taken over once more, at the group's progress.
    """

    policy: Callable[[], Policy]
    missing: Callable[[frozenset[str]], frozenset[str] | None]
    log_ids: LogIds = no_log_ids
    ask_restart: AskRestart = no_restart
    repeat_takeover: Callable[[Partition], None] = lambda queue: None

    def restart_for(self, topic: str, *, broken: bool) -> bool:
        """Ask for a restart for a queue topic; return whether there will be one.

        `broken`: what was read of the topic is not true any more.
        """
        incarnation = "/".join(self.log_ids([topic]).get(topic, ()))
        return self.ask_restart(RestartCause(RestartReason.QUEUE_TOPIC, topic, incarnation, broken))


@dataclass
class Presence:
    """Whether a queue that is not open exists. `exists`: nothing says that it does not. `absent`: the lane goes on
    without it. `missing_since`: when it was missing first, infinite if it never was; `looked_at`: when it was missing
    last. Both are monotonic seconds."""

    exists: bool
    absent: bool = False
    missing_since: float = inf
    looked_at: float = 0.0

    def doubt(self) -> None:
        """Note a look that did not say that the queue is missing: the next such answer begins anew."""
        if not self.absent:
            self.missing_since = inf

    def is_due(self, every: float) -> bool:
        """Return whether the queue is to be looked for; if it is absent, only after so many seconds."""
        return not self.absent or time.monotonic() >= self.looked_at + every


@dataclass
class QueueReading:
    """One queue that the lane has opened, under its epoch, since a moment (monotonic seconds).

    `position`, `end`: what is read next, and up to where it is read first; −1 while they are not known. `log`: the log
    that is read. `known_to`: the lane knows what lies below it. `told_end`: the end of the log that was handed over
    last. `is_late`: it was named, as it is not caught up.
    """

    epoch: int
    since: float
    presence: Presence
    position: int = -1
    end: int = -1
    log: LogId | None = None
    known_to: int = -1
    told_end: int = -1
    caught_up: bool = False
    is_late: bool = False


class QueueThread(ContextThread):
    """Port `QueueReads` on Kafka. `group`: the one that commits the queues' progress. `room`: bytes of the cache."""

    def __init__(
        self,
        config: Mapping[str, object],
        listener: QueueListener,
        registry: CredentialRegistry,
        room: int,
        ask: QueueHelp,
    ) -> None:
        super().__init__(f"queues-{config['group.id']}")
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self._stopping = StopRequest()
        self._clients = QueueClients(config, registry.register(self.name), self._stopping)
        self._lane, self._ask, self._headers = listener, ask, queue_reading_of(ask.policy)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._news: SimpleQueue[tuple[Partition, int, int]] = SimpleQueue()
        """What the lane knows of queues: the words of `known`."""
        self._readings: dict[Partition, QueueReading] = {}
        self._reads = RecordReads(RecentRecords(room), self._arrived, self._read_ahead, self._gone)
        self._looks = LookTimes()
        self._had_ladder = False
        """Whether the group had a ladder since the start: a former owner may have written to any queue then."""

    @property
    def last_error(self) -> str:
        """What Kafka said last that kept a queue from being read."""
        return self._clients.last_error

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
        if not self._give_recent(queue, epoch, offset):
            self._commands.put(lambda: self._want_record(queue, epoch, offset))

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        """Read records that are fetched soon (port `QueueReads`)."""
        if missing := self._reads.recent.missing(queue, offsets):
            self._commands.put(lambda: self._want_ahead(queue, epoch, missing))

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
        """Hand over nothing below an offset (port `QueueReads`)."""
        self._reads.recent.keep([record for record in at_hand if not retry_state_of(record).behind])
        self._reads.recent.fill([record for record in at_hand if retry_state_of(record).behind])
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

    def do_work(self) -> None:
        """Read until stopped, or until an error ends the thread."""
        try:
            while not self._stopping.is_set():
                self._turn()
        except BaseException as failure:  # noqa: BLE001 - a thread that fails must end the process, whatever the cause
            _LOG.exception("the thread that reads the queues has ended", extra={"event": "thread-ended"})
            self.failure = failure
        finally:
            self._clients.drop()

    def _turn(self) -> None:
        self._run_commands(wait=self._has_nothing())
        is_due = self._looks.is_open_due
        if is_due:
            self._look_for_missing()
        is_idle = all(not reading.presence.exists for reading in self._readings.values())
        if is_idle:
            self._clients.keep_up()
        if is_idle or not self._clients.are_ready(self._follow_opened):
            self._stopping.wait(0 if self._has_nothing() else BUSY_POLL)
            return
        if is_due or self._looks.is_open_due:  # a queue that was just seen to exist is opened at once
            self._open_more()
        self._look_at_logs()
        while self._hear():
            pass
        if self._lane.queue_full():
            self._stopping.wait(BUSY_POLL)
        else:
            wait = 0 if self._reads.wanted else BUSY_POLL if self._reads else POLL
            self._take_messages(next_messages(self._clients.following, wait, at_once=AT_ONCE))
        self._reads.turn(self._clients.reader, BUSY_POLL)

    def _has_nothing(self) -> bool:
        """Whether there is no queue to read, or to open soon."""
        return all(reading.presence.absent for reading in self._readings.values())

    def _run_commands(self, *, wait: bool) -> None:
        try:
            while True:
                command = self._commands.get(block=wait, timeout=IDLE if wait else None)
                if command is not None:
                    command()
                wait = False
        except Empty:
            return

    # --- queues are opened and closed --------------------------------------------------------------------------------

    def _open(self, queue: Partition, epoch: int) -> None:
        self._close(queue)
        self._readings[queue] = QueueReading(epoch, time.monotonic(), Presence(self._ask.policy().queued))
        self._looks.open_at = 0.0

    def _close(self, queue: Partition) -> None:
        reading = self._readings.pop(queue, None)
        self._reads.forget(queue)
        if reading is not None and reading.position >= 0:
            self._clients.leave(queue)

    def _look_for_missing(self) -> None:
        """Find out which queues exist that are not read: in a group without a ladder, or that were missing.

        One that was absent is looked for without a ladder too: redrives, other instances, and copies that were refused
        before the ladder ended may be written there (contract 5.11).
        """
        missing = {queue: one for queue, one in self._readings.items() if not one.presence.exists and self._is_due(one)}
        if not missing:
            return
        self._looks.open_at = time.monotonic() + RETRY_EVERY
        absent = self._ask.missing(frozenset(queue.topic for queue in missing))
        for queue, reading in missing.items():
            if absent is not None and queue.topic in absent:
                self._miss(queue, reading)
                continue
            reading.presence.doubt()
            if absent is not None:
                reading.presence.exists, self._looks.open_at = True, 0.0

    def _is_due(self, reading: QueueReading) -> bool:
        """Return whether a queue that is not open is to be looked for now."""
        return reading.presence.is_due(IDLE if self._ask.policy().queued else LOOK_SELDOM)

    def _miss(self, queue: Partition, reading: QueueReading) -> None:
        """Note that a queue does not exist; have the lane go on without it once that is sure."""
        now, is_wanted, presence = time.monotonic(), self._ask.policy().queued, reading.presence
        presence.missing_since, presence.looked_at = min(now, presence.missing_since), now
        presence.exists = is_wanted  # else there is no client
        self._had_ladder = self._had_ladder or is_wanted
        if not presence.absent and (not self._had_ladder or now >= presence.missing_since + SURE_AFTER):
            presence.absent = True
            if is_wanted:
                text = "%s is missing, or not for this user to see: its main partition goes on, and what fails there "
                text += "waits in memory, with its key"
                _LOG.error(text, queue, extra={"event": "queue-missing", "partition": str(queue)})
            self._lane.queue_absent(queue, reading.epoch)

    def _open_more(self) -> None:
        """Open the queues that exist, and whose progress and end Kafka tells."""
        self._looks.open_at = time.monotonic() + RETRY_EVERY
        sought = {
            queue: reading
            for queue, reading in self._readings.items()
            if reading.position < 0 and reading.presence.exists and self._is_due(reading)
        }
        if present := self._present(sought):
            logs = self._ask.log_ids({queue.topic for queue in present})
            progress_of = committed(self._clients.following, present, patient=False)
            for queue, edge in self._edges_of(progress_of).items():
                self._begin(queue, progress_of[queue], edge, logs.get(queue.topic))
        for queue, reading in self._readings.items():
            is_late = not reading.caught_up and not reading.presence.absent and time.monotonic() - reading.since > LATE
            if is_late and not reading.is_late:
                reading.is_late = True
                text = "%s is not read up to its end yet, so nothing of its main partition is delivered: %s"
                why = "a transaction is open" if reading.position >= 0 else "its offsets are unknown"
                extra = {"event": "queue-unread", "partition": str(queue)}
                _LOG.warning(text, queue, self._clients.last_error or why, extra=extra)

    def _present(self, sought: Mapping[Partition, QueueReading]) -> list[Partition]:
        """Return those of these queues that exist. For one without which the lane goes on, ask for a restart."""
        topics = named_topics(self._clients.reader, sorted({queue.topic for queue in sought}), ANSWER_WITHIN)
        present = list[Partition]()
        for queue, reading in sought.items():
            described = topics.described.get(queue.topic)
            if queue.topic in topics.absent or (described is not None and queue.number not in described.partitions):
                self._miss(queue, reading)  # it is missing, or narrower than the main topic
            elif described is None:
                reading.presence.doubt()
            elif reading.presence.absent:
                reading.presence.looked_at = time.monotonic()
                self._ask.restart_for(queue.topic, broken=False)
            else:
                reading.presence.doubt()
                present.append(queue)
        return present

    def _begin(self, queue: Partition, progress: Progress | None, edge: Edges, log: LogId | None) -> None:
        """Begin to read a queue, whose log had these edges."""
        reading = self._readings[queue]
        start = start_of_queue(queue, progress, edge, log)
        reading.position, reading.end, reading.log = start.next, edge.high, start.log
        self._clients.follow({queue: start.next})
        self._lane.queue_opened(AssignedPartition(queue, reading.epoch, start))
        self._hand_over(queue, reading, [], None)

    def _edges_of(self, queues: Collection[Partition]) -> dict[Partition, Edges]:
        """Return where logs begin and end, with what is not committed, as far as their leaders answer."""
        return edges(OffsetLookup(self._clients.reader, self._looks.leaders), queues) if queues else {}

    def _follow_opened(self) -> None:
        """Have clients that were just made read on where the last ones were."""
        self._reads.forget_positions()
        opened = {queue: reading for queue, reading in self._readings.items() if reading.position >= 0}
        self._clients.follow({queue: reading.position for queue, reading in opened.items()})

    # --- what is written is followed ---------------------------------------------------------------------------------

    def _take_messages(self, messages: Iterable[Message]) -> None:
        """Hand over what these messages hold, but for what the lane knows already."""
        runs: dict[Partition, list[Record]] = {}
        ends: dict[Partition, int] = {}
        for message in messages:
            queue = Partition(message.topic() or "", message.partition() or 0)
            reading, error, offset = self._readings.get(queue), message.error(), message.offset()
            if reading is None or offset is None:
                continue
            if error is None and offset >= reading.position:
                runs.setdefault(queue, [])
                # To parse headers is most of what a record costs here, so it is asked before.
                is_known = self._is_known(reading, offset)
                reading.position = offset + 1
                if not is_known:
                    runs[queue].append(to_record(message, queue, reading.epoch, self._headers))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                ends[queue] = reading.position = max(reading.position, offset)
            elif error is not None:
                self._on_error(queue, reading, error)
        self._reads.recent.keep([record for records in runs.values() for record in records])
        for queue in ends.keys() | runs.keys():
            if (reading := self._readings.get(queue)) is not None:
                self._hand_over(queue, reading, runs.get(queue, []), ends.get(queue))

    def _is_known(self, reading: QueueReading, offset: int) -> bool:
        """Return whether the lane knows what lies at an offset; what it has said since is heard for that."""
        while offset >= reading.known_to:
            if not self._hear():
                return False
        return True

    def _hear(self) -> bool:
        """Take in one word of the lane's; return False if there is none."""
        try:
            queue, epoch, end = self._news.get_nowait()
        except Empty:
            return False
        if (reading := self._readings.get(queue)) is not None and reading.epoch == epoch:
            reading.known_to = end
        return True

    def _hand_over(self, queue: Partition, reading: QueueReading, records: list[Record], end: int | None) -> None:
        """Hand over what was read; nothing is handed over for an end of the log that says nothing new."""
        caught_up, is_new_end = reading.position >= reading.end, end is not None and end > reading.told_end
        if records or is_new_end or (caught_up and not reading.caught_up):
            reading.caught_up = reading.caught_up or caught_up
            reading.told_end = reading.told_end if end is None else end
            self._lane.queue_read(FetchedRecords(queue, reading.epoch, 0, records, end), reading.caught_up)

    def _on_error(self, queue: Partition, reading: QueueReading, error: KafkaError) -> None:
        """Take in an error of a queue: mostly passing ones, but the log may be cut there, or another one."""
        self._clients.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            raise KafkaException(error)
        _LOG.warning("%s: %s", queue, self._clients.last_error, extra={"event": "kafka-error"})
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        edge = self._edges_of([queue]).get(queue)
        if edge is not None and edge.high < reading.position:
            self._leave_to_restart(queue, f"it ends at {edge.high}, before what was read")
            return
        if edge is not None:
            name_cut(queue, reading.position, edge.low)
            reading.position = max(edge.low, reading.position)
            self._lane.queue_cut(queue, reading.epoch, edge.high)
        self._clients.leave(queue)  # where nobody tells its edges, as its leader moves, the error comes again
        self._clients.follow({queue: reading.position})

    # --- single records ----------------------------------------------------------------------------------------------

    def _give_recent(self, queue: Partition, epoch: int, offset: int) -> bool:
        """Hand over a record that is at hand; return whether it is."""
        record = self._reads.recent.take_record(queue, offset, epoch)
        if record is not None:
            self._lane.queue_fetched(queue, epoch, offset, record)
        return record is not None

    def _want_record(self, queue: Partition, epoch: int, offset: int) -> None:
        is_read = (reading := self._readings.get(queue)) is not None and reading.epoch == epoch
        if is_read and not self._give_recent(queue, epoch, offset):  # it may have been read ahead just now
            self._reads.want(queue, offset)

    def _want_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        if (reading := self._readings.get(queue)) is not None and reading.epoch == epoch:
            self._reads.want_ahead(queue, offsets)

    def _arrived(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            record = to_record(message, queue, reading.epoch, self._headers)
            self._lane.queue_fetched(queue, reading.epoch, record.offset, record)

    def _read_ahead(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            self._reads.recent.keep([to_record(message, queue, reading.epoch, self._headers)])

    def _gone(self, queue: Partition, offset: int) -> None:
        if (reading := self._readings.get(queue)) is not None:
            text = "%s: the record at %d is gone from the queue before it was delivered"
            extra = {"event": "queue-lost", "partition": str(queue), "offset": offset}
            _LOG.error(text, queue, offset, extra=extra)
            self._lane.queue_fetched(queue, reading.epoch, offset, None)

    # --- are the logs still the same? --------------------------------------------------------------------------------

    def _look_at_logs(self) -> None:
        """Find out which queues are another log than was read, and which were deleted."""
        now, opened = time.monotonic(), [queue for queue, one in self._readings.items() if one.position >= 0]
        if now < self._looks.logs_at or not opened:
            return
        self._looks.logs_at = now + LOOK_AT_LOGS_EVERY
        topics = {queue.topic for queue in opened}
        logs = self._ask.log_ids(topics)
        for queue in opened:
            reading, log = self._readings[queue], logs.get(queue.topic)
            if is_recreated(reading.log, log):
                self._leave_to_restart(queue, "its topic was deleted and created again")
            reading.log = reading.log or log
        untold = named_topics(self._clients.reader, sorted(topics - logs.keys()), ANSWER_WITHIN)
        since = self._looks.gone_since
        self._looks.gone_since = {topic: since.get(topic, now) for topic in untold.absent}
        for queue in opened:
            if now >= self._looks.gone_since.get(queue.topic, inf) + SURE_AFTER and queue in self._readings:
                text = "%s was deleted while it was read: what waited in it is lost"
                _LOG.error(text, queue, extra={"event": "queue-deleted", "partition": str(queue)})
                self._ask.repeat_takeover(queue)
                self._close(queue)

    def _leave_to_restart(self, queue: Partition, why: str) -> None:
        """Ask for a restart for a queue that is another log than was read: what the lane knows of it is of that one.

        Raise RuntimeError if the process has restarted for this topic already.
        """
        text = f"{queue} is another log than was read: {why}"
        if not self._ask.restart_for(queue.topic, broken=True):
            raise RuntimeError(text)
        _LOG.error("%s", text, extra={"event": "queue-recreated", "partition": str(queue)})
        self._lane.dropped([queue])
        self._close(queue)


@dataclass
class LookTimes:
    """When the reader looks at its queues next: for those that are not open, and at the logs of the others (monotonic
    seconds); since when topics are missing that were read; and which leaders do not answer."""

    open_at: float = 0.0
    logs_at: float = 0.0
    gone_since: dict[str, float] = field(default_factory=dict)
    leaders: Leaders = field(default_factory=Leaders)

    @property
    def is_open_due(self) -> bool:
        """Whether queues are to be looked for, or opened, now."""
        return self.open_at <= time.monotonic()
