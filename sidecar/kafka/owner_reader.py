"""Read for the owner of partitions, beside its consumer: what owners have noted, and ranges that a decision is about.

One thread for each lane (port `NotesReads`). It starts with the first command, so a lane of which nothing is noted, and
in a group without decisions, has none. It makes its client for a command and keeps it for `IDLE` seconds. One scan at a
time is read in a process, with one partition, so that scans take some MiB at most, however many lanes and groups there
are; the group's consumer stays where it is.

*Notes* are read from the beginning of partition 1 of the policy topic up to the high watermark that it has when the
command comes: not up to the last stable offset, since the last transactions of a dead owner may be open. The reading
waits for their ends. A topic or a partition that does not exist has no notes: the lane knows what that means.

*A scan* brings up to MOST records, or MOST_BYTES, of a range, and says where the next one begins. If it ends early (an
open transaction, no leader), the lane asks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from confluent_kafka import KafkaException

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.ports import ScannedRange
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.scan import Bounds, ScanClient
from reconsume.sidecar.observability.thread_watch import StopRequest
from reconsume.topics.owner_notes import PARTITION, OwnerNotes

IDLE = 10.0
"""Seconds without a command after which the client is closed."""
RETRY_EVERY = 0.5
"""Seconds before the notes are read again after an error."""
PATIENCE = 2.0
"""Seconds without a record after which a reading ends."""
MOST, MOST_BYTES = 500, 1 << 20
"""Records, and their bytes, of one scan at most."""

_ONE_AT_A_TIME = threading.Lock()
_LOG = logging.getLogger("reconsume.notes")


class OwnerListener(Protocol):
    """The receiver of what was read. Calls are made on the thread that reads, and must return at once."""

    def notes_read(self, wanted: Mapping[Partition, int], notes: OwnerNotes) -> None:
        """Take over what owners have noted about partitions, which were `wanted` under these epochs."""

    def scanned(self, scanned: ScannedRange) -> None:
        """Take over the records of a range."""


class OwnerReader(ContextThread):
    """Port `NotesReads` on Kafka.

    `kafka`: returns the properties with the newest credentials. `topic`: returns the name of the policy topic.
    `reading`: as in `to_record`, for what is scanned.
    """

    def __init__(
        self,
        kafka: Callable[[], Mapping[str, Any]],
        group: str,
        client_id: str,
        topic: Callable[[], str],
        reading: Callable[[], Reading | None],
        listener: OwnerListener,
    ) -> None:
        super().__init__(f"notes-{group}")
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self.last_error = ""
        self._kafka, self._group, self._client_id = kafka, group, client_id
        self._topic, self._reading, self._listener = topic, reading, listener
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = StopRequest()
        self._client: ScanClient | None = None

    @property
    def turned_at(self) -> float:
        """When the thread last began a turn (monotonic seconds)."""
        return self._stopping.turned_at

    # --- called on the event loop ------------------------------------------------------------------------------------

    def read_notes(self, wanted: Mapping[Partition, int]) -> None:
        """Read what is noted about partitions (port `NotesReads`)."""
        self._put(lambda: self._read_notes(wanted))

    def scan(self, source: Partition, epoch: int, begin: int, end: int) -> None:
        """Read a range of a partition (port `NotesReads`)."""
        self._put(lambda: self._scan(source, epoch, Span(begin, end)))

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._stopping.set()
        self._commands.put(None)

    def _put(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        if not self.is_alive() and not self._stopping.is_set():
            self.start()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def do_work(self) -> None:
        """Carry out commands until stopped, or until an error ends the thread."""
        try:
            while not self._stopping.is_set():
                try:
                    command = self._commands.get(timeout=IDLE)
                except Empty:
                    self._drop_client()
                    continue
                if command is not None:
                    command()
        except BaseException as failure:  # noqa: BLE001 - a thread that fails must end the process, whatever the cause
            _LOG.exception("the thread that reads notes has ended", extra={"event": "thread-ended"})
            self.failure = failure
        finally:
            self._drop_client()

    def _client_now(self) -> ScanClient:
        if self._client is None:
            self._client = ScanClient(self._kafka(), self._group, self._client_id)
        return self._client

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _failed(self, event: str, text: str, failure: str) -> None:
        """Note and log why nothing could be read; the next try begins with another client, which may log in anew."""
        self.last_error = failure
        _LOG.warning(text, failure, extra={"event": event})
        self._drop_client()

    # --- notes -------------------------------------------------------------------------------------------------------

    def _read_notes(self, wanted: Mapping[Partition, int]) -> None:
        while not self._stopping.is_set():
            failure = ""
            try:
                notes = self._notes(wanted)
            except (KafkaException, BrokerError, ConfigError, DeniedError) as error:
                failure = str(error)
            if not failure:
                self._listener.notes_read(wanted, notes)
                return
            text = "what owners have noted cannot be read yet, and partitions that need it wait: %s"
            self._failed("notes-unread", text, failure)
            self._stopping.wait(RETRY_EVERY)

    def _notes(self, wanted: Mapping[Partition, int]) -> OwnerNotes:
        """Return the notes about these partitions. Raises KafkaException or BrokerError if Kafka does not answer."""
        notes, source = OwnerNotes(frozenset(wanted)), Partition(self._topic(), PARTITION)
        cluster = Cluster(self._kafka(), self._client_id)
        topic = cluster.visible([source.topic]).get(source.topic)
        spans = cluster.spans([source], committed=False) if topic is not None and topic.partitions > PARTITION else {}
        scan = self._client_now().scan(spans, Bounds(patience=PATIENCE))
        for message in scan:
            self._stopping.is_set()  # counts as a turn
            notes.take(message.key(), message.value())
        if scan.left:
            raise BrokerError(
                f"{source} could not be read up to {spans[source].end}: a transaction is open, or it has no leader"
            )
        if notes.bad:
            _LOG.warning("ignored in %s: %s", source, notes.bad, extra={"event": "policy-bad-records"})
        return notes

    # --- a scan ------------------------------------------------------------------------------------------------------

    def _scan(self, source: Partition, epoch: int, span: Span) -> None:
        with _ONE_AT_A_TIME:
            records, at, failure = list[Record](), span.begin, ""
            try:
                at = self._records(source, epoch, span, records)
            except (KafkaException, BrokerError, ConfigError, DeniedError) as error:
                failure = str(error)
                at = records[-1].offset + 1 if records else at
            if failure:
                self._failed("scan-failed", "records that an operator has settled cannot be looked up yet: %s", failure)
            self._listener.scanned(ScannedRange(source, epoch, span.begin, at, tuple(records)))

    def _records(self, source: Partition, epoch: int, span: Span, records: list[Record]) -> int:
        """Read records of a range; return where the next reading begins."""
        weight, reading = 0, self._reading()
        scan = self._client_now().scan({source: span}, Bounds(patience=PATIENCE))
        until = time.monotonic() + 2 * PATIENCE
        for message in scan:
            record = to_record(message, source, epoch, reading)
            records.append(record)
            weight += record.weight
            is_enough = len(records) >= MOST or weight >= MOST_BYTES or time.monotonic() > until
            if is_enough or self._stopping.is_set():
                break
        return scan.left.get(source, span.end)
