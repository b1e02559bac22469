"""Read the queues of a main lane: one thread that follows them, and reads single records again when they are due.

Who owns a main partition owns the queue partition of the same number, so nothing is subscribed here: a queue is opened
(`queue_opening.py`), then what lies there is taken in (`queue_intake.py`), and its logs are looked at (`log_watch.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from confluent_kafka import Message

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import Properties
from reconsume.sidecar.kafka.consumer.log_ids import LogIds, no_log_ids
from reconsume.sidecar.kafka.credentials.registry import CredentialRegistry
from reconsume.sidecar.kafka.few_messages import next_messages
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.queues.log_watch import LogWatch
from reconsume.sidecar.kafka.queues.offset_reads import Payloads, RecentRecords
from reconsume.sidecar.kafka.queues.own_appends import OwnAppends
from reconsume.sidecar.kafka.queues.queue_clients import QueueClients
from reconsume.sidecar.kafka.queues.queue_intake import QueueIntake, QueueListener
from reconsume.sidecar.kafka.queues.queue_opening import IDLE, QueueOpening
from reconsume.sidecar.kafka.queues.queue_reading import QueueReading, queue_reading_of
from reconsume.sidecar.kafka.restart_cause import AskRestart, RestartCause, RestartReason, no_restart
from reconsume.sidecar.observability.thread_watch import StopRequest
from reconsume.topics.attempt import retry_state_of

POLL, BUSY_POLL = 0.05, 0.005
"""Seconds of a wait for records, and while records are being read by their offsets. A request by another thread waits
so long at most."""
AT_ONCE = 4
"""Messages that one call may return, as in a lane: each call gives the interpreter away."""
_LOG = logging.getLogger("reconsume.queues")


class QueueDoubts(NamedTuple):
    """What is done about a queue that is not what it was; called on the reader's thread, and returns at once.

    `ask_restart`: asks for a restart in place. `log_ids`: tells which logs topics have. `repeat_takeover`: has the main
    partition of a queue that was deleted taken over once more, at the group's progress.
    """

    ask_restart: AskRestart = no_restart
    log_ids: LogIds = no_log_ids
    repeat_takeover: Callable[[Partition], None] = lambda queue: None

    def restart_for(self, topic: str, *, broken: bool) -> bool:
        """Ask for a restart for a queue topic; return whether there will be one.

        `broken`: what was read of the topic is not true any more.
        """
        incarnation = "/".join(self.log_ids([topic]).get(topic, ()))
        return self.ask_restart(RestartCause(RestartReason.QUEUE_TOPIC, topic, incarnation, broken))


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
        doubts: QueueDoubts | None = None,
    ) -> None:
        super().__init__(name=f"queues-{group}", daemon=True)
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self._stopping = StopRequest()
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._readings: dict[Partition, QueueReading] = {}
        self._listener, self._headers, self._policy = listener, queue_reading_of(policy), policy
        self._recent, self._appends, self._logs = RecentRecords(room), appends, LogWatch()
        self._payloads = Payloads(self._arrived, self._passed, self._gone)
        clients = self._clients = QueueClients(kafka, group, client_id, registry.register(self.name), self._stopping)
        intake = self._intake = QueueIntake(
            *(self._readings, clients, self._payloads, self._recent, appends, self._logs, listener, self._headers)
        )
        self._doubts = doubts = doubts or QueueDoubts()
        self._opening = QueueOpening(
            *(self._readings, clients, intake, self._logs, listener, policy, missing),
            lambda topic: doubts.restart_for(topic, broken=False),
        )

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
        record = self._recent.take(queue, offset, epoch)
        if record is not None:
            self._listener.queue_fetched(queue, epoch, offset, record)
        else:
            self._commands.put(lambda: self._want(queue, epoch, offset))

    def known(
        self, queue: Partition, epoch: int, end: int, at_ms: int, at_hand: Sequence[Record], *, awaited: bool
    ) -> None:
        """Hand over nothing below an offset (port `QueueReads`)."""
        self._recent.keep([record for record in at_hand if not retry_state_of(record).behind])
        self._recent.fill([record for record in at_hand if retry_state_of(record).behind])
        self._appends.read_up_to(queue, end)
        self._intake.known(queue, epoch, end, at_ms, awaited=awaited)

    def close(self, queue: Partition) -> None:
        """Read a queue no more (port `QueueReads`)."""
        self._commands.put(lambda: self._close(queue))

    def expect_queues(self) -> None:
        """Have one answer be no proof that a queue is missing: the group has a ladder, in force or not."""
        self._opening.expect_queues()

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
            _LOG.exception("the thread that reads the queues has ended", extra={"event": "thread-ended"})
            self.failure = failure
        finally:
            self._clients.drop()

    def _turn(self) -> None:
        self._run_commands(wait=self._has_nothing())
        if due := self._opening.is_due:
            self._opening.look_for_unknown()
        if is_idle := all(not reading.exists for reading in self._readings.values()):
            self._clients.keep_up()
        if is_idle or not self._clients.ready(self._begin_anew):
            self._stopping.wait(0 if self._has_nothing() else BUSY_POLL)
            return
        if due or self._opening.is_due:  # a queue that was just seen to exist is opened at once
            self._opening.open_more()
        self._look_at_logs()
        self._intake.rest()
        if not self._listener.queue_full():
            others = self._intake.take(
                next_messages(self._clients.following, BUSY_POLL if self._payloads else POLL, at_once=AT_ONCE)
            )
            for queue, why in others.items():
                self._leave_to_restart(queue, why)
        else:
            self._stopping.wait(BUSY_POLL)
        self._payloads.turn(self._clients.reader, BUSY_POLL)

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

    # --- queues come and go ------------------------------------------------------------------------------------------

    def _open(self, queue: Partition, epoch: int) -> None:
        self._close(queue)
        self._readings[queue] = QueueReading(epoch, time.monotonic(), exists=self._policy().queued)
        self._opening.soon()

    def _close(self, queue: Partition) -> None:
        reading = self._readings.pop(queue, None)
        self._payloads.forget(queue)
        self._recent.forget(queue)
        self._appends.forget(queue)
        self._logs.forget(queue)
        if reading is not None and reading.position >= 0:
            self._clients.leave(queue)

    def _begin_anew(self) -> None:
        """Have clients that were just made read on where the last ones were."""
        self._payloads.begin_anew()
        opened = {queue: reading for queue, reading in self._readings.items() if reading.position >= 0}
        for reading in opened.values():
            reading.rests_until = 0.0
        self._clients.follow_all({queue: reading.position for queue, reading in opened.items()})

    def _want(self, queue: Partition, epoch: int, offset: int) -> None:
        reading = self._readings.get(queue)
        if reading is not None and reading.epoch == epoch:
            self._payloads.want(queue, offset)

    def _leave_to_restart(self, queue: Partition, why: str) -> None:
        """Ask for a restart for a queue that is another log than was read: what the lane knows of it is of that one.

        Raise RuntimeError if the process has restarted for this topic already.
        """
        if queue not in self._readings:
            return
        text = f"{queue} is another log than was read: {why}"
        if not self._doubts.restart_for(queue.topic, broken=True):
            raise RuntimeError(text)
        _LOG.error("%s", text, extra={"event": "queue-recreated", "partition": str(queue)})
        self._listener.dropped([queue])
        self._close(queue)

    # --- what is read ------------------------------------------------------------------------------------------------

    def _look_at_logs(self) -> None:
        """Find out which queues are another log than was read, and which were deleted."""
        if not self._logs.is_time():
            return
        read = {queue: one.read for queue, one in self._readings.items() if one.position >= 0}
        for queue in self._logs.others(self._clients.reader, read):
            self._leave_to_restart(queue, "it begins with what is younger than what was read of it")
        self._logs.look_for(self._clients.reader, read.keys() & self._readings.keys())
        for queue in self._logs.doubtful():
            if self._clients.exist(queue):
                self._logs.is_there(queue)
            elif self._logs.is_gone(queue):
                text = "%s was deleted while it was read: what waited in it is lost"
                _LOG.error(text, queue, extra={"event": "queue-deleted", "partition": str(queue)})
                self._doubts.repeat_takeover(queue)
                self._close(queue)

    def _arrived(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            record = to_record(message, queue, reading.epoch, self._headers)
            self._listener.queue_fetched(queue, reading.epoch, record.offset, record)

    def _passed(self, queue: Partition, message: Message) -> None:
        if (reading := self._readings.get(queue)) is not None:
            self._recent.keep([to_record(message, queue, reading.epoch, self._headers)])

    def _gone(self, queue: Partition, offset: int) -> None:
        if (reading := self._readings.get(queue)) is not None:
            text = "%s: the record at %d is gone from the queue before it was delivered"
            extra = {"event": "queue-lost", "partition": str(queue), "offset": offset}
            _LOG.error(text, queue, offset, extra=extra)
            self._listener.queue_fetched(queue, reading.epoch, offset, None)
