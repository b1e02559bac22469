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

from confluent_kafka import Message

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import Properties
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
from reconsume.sidecar.observability.thread_watch import StopRequest
from reconsume.topics.attempt import retry_state_of

POLL, BUSY_POLL = 0.05, 0.005
"""Seconds of a wait for records, and while records are being read by their offsets. A request by another thread waits
so long at most."""
AT_ONCE = 4
"""Messages that one call may return, as in a lane: each call gives the interpreter away."""
_LOG = logging.getLogger("reconsume.queues")


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
        self._opening = QueueOpening(self._readings, clients, intake, self._logs, listener, policy, missing)

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
            self._intake.take(
                next_messages(self._clients.following, BUSY_POLL if self._payloads else POLL, at_once=AT_ONCE)
            )
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

    # --- what is read ------------------------------------------------------------------------------------------------

    def _look_at_logs(self) -> None:
        """Raise RuntimeError if a queue is another log than was read, or is no more: what the lane knows of it is of
        that log, so it must be read anew."""
        if not self._logs.is_time():
            return
        read = {queue: one.read for queue, one in self._readings.items() if one.position >= 0}
        if renewed := self._logs.others(self._clients.reader, read):
            raise RuntimeError(f"{renewed[0]} was made anew: it begins with what is younger than what was read of it")
        self._logs.look_for(self._clients.reader, read)
        for queue in self._logs.doubtful():
            if self._clients.exist(queue):
                self._logs.is_there(queue)
            elif self._logs.is_gone(queue):
                raise RuntimeError(f"{queue} was deleted while it was read")

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
