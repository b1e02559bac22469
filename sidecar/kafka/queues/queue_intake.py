"""What lies in queues that are open: it is handed over as it is read, but for what the lane knows already."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.queues.log_watch import LogWatch
from reconsume.sidecar.kafka.queues.offset_reads import Payloads, RecentRecords
from reconsume.sidecar.kafka.queues.own_appends import OwnAppends
from reconsume.sidecar.kafka.queues.queue_clients import NoEdges, QueueClients
from reconsume.sidecar.kafka.queues.queue_reading import QueueReading, name_cut

PATIENCE = 0.05
"""Seconds of a turn in which what the lane does not know yet waits for the lane. Mostly that is a copy that it has
written itself, and whose commit it learns at the same time. To parse it and to hand it over takes long."""
FAR_AHEAD = 64
"""Offsets by which the lane must know more of a queue than was read for the reader to pass them and to rest."""
REST = 0.2
"""Seconds in which a queue is not followed then: what others write there comes so much later. To fetch and to skip one
copy of our own takes 4 us, a twentieth of what an ordered failure costs."""
_LOG = logging.getLogger("reconsume.queues")


class QueueListener(Protocol):
    """The receiver of what was read; calls are made on the reader's thread and must return at once."""

    def queue_opened(self, grant: AssignedPartition) -> None:
        """Begin with a queue."""

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        """Go on without a queue: there is no such partition."""

    def dropped(self, partitions: Sequence[Partition]) -> None:
        """Drop queues with their main partitions; commit nothing of them."""

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        """Reckon with what was not read yet being gone: the log begins later now, and ends at `end`."""

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        """Take over what lies in a queue."""

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        """Take over a record that was read by its offset; None: it is gone."""

    def queue_full(self) -> bool:
        """Return whether nothing more may be handed over for now."""


class QueueIntake:
    """Takes in the queues of one thread. `readings`: those that are read, and how far. `headers`: reads our headers."""

    def __init__(
        self,
        readings: Mapping[Partition, QueueReading],
        clients: QueueClients,
        payloads: Payloads,
        recent: RecentRecords,
        appends: OwnAppends,
        logs: LogWatch,
        listener: QueueListener,
        headers: Reading,
    ) -> None:
        self._readings, self._clients, self._payloads, self._recent = readings, clients, payloads, recent
        self._appends, self._logs, self._listener, self._headers = appends, logs, listener, headers
        self._news: SimpleQueue[tuple[Partition, int, int, int, bool]] = SimpleQueue()
        """What the lane knows of queues, as it says it to `known`. Other threads put it there."""
        self._stirred = set[Partition]()
        """The queues of which the lane has said something since the last look, and those that rest: of ten thousand
        few."""

    def known(self, queue: Partition, epoch: int, end: int, at_ms: int, *, awaited: bool) -> None:
        """Hand over nothing below an offset, as `QueueReads.known`; called on the lane's thread."""
        self._news.put((queue, epoch, end, at_ms, awaited))

    def rest(self) -> None:
        """Pass what the lane itself writes without reading it, where that is much; look now and then for what others
        write."""
        while self._hear(0):
            pass
        stirred, self._stirred = self._stirred, set()
        for queue in stirred:
            if (reading := self._readings.get(queue)) is None:
                continue
            if not reading.rests_until:
                self._leave_if_far(queue, reading)
            elif reading.awaited or time.monotonic() >= reading.rests_until:
                reading.pass_known()
                self._clients.follow(queue, reading.position)
                reading.rests_until = 0.0
            else:
                self._stirred.add(queue)

    def _leave_if_far(self, queue: Partition, reading: QueueReading) -> None:
        """Let a queue rest of which the lane knows far more than was read, and waits for nothing in it."""
        if reading.caught_up and not reading.awaited and reading.known_to >= reading.position + FAR_AHEAD:
            reading.pass_known()
            self._leave(queue, reading)

    def _leave(self, queue: Partition, reading: QueueReading) -> None:
        reading.rests_until = time.monotonic() + REST
        self._stirred.add(queue)
        self._clients.leave(queue)

    def take(self, messages: Iterable[Message]) -> dict[Partition, str]:
        """Hand over what these messages hold; return the queues that are another log than was read, and why."""
        runs: dict[Partition, list[Record]] = {}
        ends: dict[Partition, int] = {}
        sources, others = set[Partition](), dict[Partition, str]()
        until = time.monotonic() + PATIENCE
        for message in messages:
            source = Partition(message.topic() or "", message.partition() or 0)
            reading, error, offset = self._readings.get(source), message.error(), message.offset()
            if reading is None or offset is None or reading.rests_until:
                continue
            if error is None and offset >= reading.position:
                sources.add(source)
                if (record := self._unknown(source, reading, message, offset, until)) is not None:
                    runs.setdefault(source, []).append(record)
            elif error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ends[source] = reading.position = max(reading.position, offset)
                elif why := self._on_error(source, reading, error):
                    others[source] = why
        # A copy of ours is known before it is committed: nothing that was read with it, or behind it, is handed over.
        others |= dict.fromkeys(self._appends.others(), "a copy was appended below what was read of it")
        self._recent.keep([record for records in runs.values() for record in records])
        for source in (ends.keys() | sources) - others.keys():
            if (reading := self._readings.get(source)) is not None:
                self.hand_over(source, reading, runs.get(source, []), ends.get(source))
        return others

    def _unknown(
        self, queue: Partition, reading: QueueReading, message: Message, offset: int, until: float
    ) -> Record | None:
        """Return what lies at an offset; None if the lane knows it, or is about to."""
        # To parse headers is most of what a record costs here, so it is asked before.
        if self._is_known(reading, offset, until):
            reading.pass_by(offset, message.timestamp()[1])
            self._leave_if_far(queue, reading)
        elif self._is_told_soon(queue, reading, offset):
            self._leave(queue, reading)
        else:
            reading.pass_by(offset, message.timestamp()[1])
            return to_record(message, queue, reading.epoch, self._headers)
        return None

    def _is_known(self, reading: QueueReading, offset: int, until: float) -> bool:
        """Return whether the lane knows what lies at an offset; if it does not, wait a while for it to say so.

        Where records are being read by their offsets, that is more urgent.
        """
        may_wait = reading.caught_up and not reading.awaited and not self._payloads
        while offset >= reading.known_to:
            if not self._hear(max(0, until - time.monotonic()) if may_wait else 0):
                return False
        return True

    def _is_told_soon(self, queue: Partition, reading: QueueReading, offset: int) -> bool:
        """Return whether the lane is about to know what lies at an offset, as we have written it; once for each."""
        if not reading.caught_up or reading.awaited:
            return False
        if not reading.waited_to <= offset < (end := self._appends.end_of_own(queue)):
            return False
        reading.waited_to = end
        return True

    def _hear(self, patience: float) -> bool:
        """Take in one word of the lane's; return False if none comes within so many seconds."""
        try:
            queue, epoch, end, at_ms, awaited = self._news.get(block=patience > 0, timeout=patience)
        except Empty:
            return False
        if (reading := self._readings.get(queue)) is not None and reading.epoch == epoch:
            reading.hear(end, at_ms, awaited=awaited)
            self._stirred.add(queue)
        return True

    def hand_over(self, queue: Partition, reading: QueueReading, records: list[Record], end: int | None) -> None:
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

    def _on_error(self, queue: Partition, reading: QueueReading, error: KafkaError) -> str:
        """Take in an error of a queue; return why it is another log than was read, or an empty text."""
        self._clients.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            raise KafkaException(error)
        _LOG.warning("%s: %s", queue, self._clients.last_error, extra={"event": "kafka-error"})
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return ""
        edges = self._clients.edges(queue)
        if isinstance(edges, NoEdges):  # as where its leader moves: it is heard of again from here
            self._clients.follow(queue, reading.position)
            return ""
        low, high = edges
        if high < reading.position:
            return f"it ends at {high}, before what was read"
        name_cut(queue, reading.position, low)
        reading.position = max(low, reading.position)
        self._listener.queue_cut(queue, reading.epoch, high)
        self._clients.follow(queue, reading.position)
        return ""
