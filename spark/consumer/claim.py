"""A query's place among the readers of its group's retries: claimed at the start, renewed, and withdrawn at the end.

`topics/ownership.py` says who may read, by the control log alone; this file reads and writes the log. The source holds
the claim, in the Python process that Spark gives it at the driver, so it lives and ends with the query, in every form
of it. Spark calls the source on that process's main thread; the claim is renewed on a thread of its own, because a
batch may take longer than a claim lives. A lock keeps the two apart.

A start reads the log to its end, writes only if nobody else lives, and reads on to its own record: of several that
write at once the first counts. Each renewal does the same, and so finds a later start of the same name. What was lost
is never claimed again.

`read_gated` and `read_relay` claim once, too: Spark may repeat the batch that was under way without asking a source
that has nothing in it, and whoever is refused should hear it before Spark does anything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from confluent_kafka import KafkaException

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.control_log import ControlLog, RecordWriter
from reconsume.sidecar.group_policy.state import OF_INSTANCE, ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.spark.consumer.brokers import CLIENT
from reconsume.topics.names import Names
from reconsume.topics.ownership import Reader, Readers, key_of, reader_of
from reconsume.topics.policy_record import QueryTold, SubscriptionRecord, heartbeat_subscription, render_record

RENEW_EVERY = 15.0
"""Seconds between two heartbeats."""
STALE_AFTER = 45.0
"""Seconds without a heartbeat after which a batch waits for the next one: after 60 s somebody else may read."""
ENDED_WITHIN = 10.0
"""Seconds that a start waits for a reader that is about to end: a query withdraws its claim within 5 s of its stop, and
later on a machine that is overloaded."""
ASKED_WITHIN = 1_800.0
"""Seconds without a call of Spark after which a claim is not renewed: a query may end without an end of its source, as
Spark 4.2 does if a stop meets the driver's thread in Python. A batch that takes longer claims again behind it."""
DEAD_AFTER = 10
"""Seconds after the end of a query in which its source's process is gone."""
WITHDRAWN_WITHIN = 2.0
"""Seconds that the end of a query waits, for the lock and for the brokers each."""

SOURCE_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
"""The main module of the process that Spark gives a source at the driver, and ends by SIGTERM."""


class RetriesOwnedError(RuntimeError):
    """Somebody else reads the retries of the group. The text names who and where; `reader` is the same."""

    def __init__(self, group: str, reader: Reader, own: str) -> None:
        """`own`: the name of this query among the group's instances."""
        query = reader.query
        since = datetime.fromtimestamp((query.since if query else reader.record.started) / 1000, UTC)
        text = f"{reader.described} reads the retries of the group {group} since {since:%Y-%m-%d %H:%M:%S} UTC"
        if reader.instance == own:
            text = f"this query ends, because it was started again: {text}"
        else:
            text += f". Both would write a copy of each failure. Stop one of them; {reader.instance} counts for "
            text += f"{reader.counts_for_ms // 1000} s after it was killed"
        super().__init__(text)
        self.reader = reader


class NoPolicyTopicError(RuntimeError):
    """The group has no policy topic, in which its readers say who they are."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the topic {topic} is missing, or this user has no right to see it (READ and WRITE on it). "
            "Readers of a group's retries need it: `reconsume topics apply` creates it"
        )


class Claim:
    """One start of a query among the readers of its group. `hold` claims and checks; `withdraw` ends it.

    States: not claimed yet, held, lost (`hold` raises for ever), withdrawn.
    """

    def __init__(
        self,
        client: Mapping[str, str],
        names: Names,
        name: str,
        topics: Sequence[str],
        *,
        gated: bool,
        application: str = "",
        renew_every: float = RENEW_EVERY,
        patience: float = ENDED_WITHIN,
    ) -> None:
        """`client` holds librdkafka's settings. `gated`: the query reads the level topics itself. Asks nothing yet."""
        self._client, self._names = dict(client), names
        self._renew_every, self._patience = renew_every, patience
        self._query = QueryTold(name, application, socket.gethostname(), _now_ms(), uuid.uuid4().hex, gated=gated)
        subscription, digest = heartbeat_subscription(dict.fromkeys(topics, "*"))
        self._record = SubscriptionRecord(
            subscription, 0, subscribed=digest, mode="spark", started=self._query.since, query=self._query
        )
        self._log: PolicyLog | None = None
        self._held_at: float | None = None
        """When the last heartbeat was found to count (monotonic seconds); None before the first."""
        self._asked_at = time.monotonic()
        """When Spark called last (monotonic seconds)."""
        self._lost: Reader | None = None
        self._lock, self._ended = threading.RLock(), threading.Event()

    def hold(self) -> None:
        """Claim at the first call; later raise if the claim was lost, and renew it first if that is overdue.

        Raises RetriesOwnedError, NoPolicyTopicError, and BrokerError or KafkaException if the brokers do not answer.
        """
        self._asked_at = time.monotonic()
        if self._held_at is None or time.monotonic() - self._held_at > STALE_AFTER:
            first = self._held_at is None
            self._renew()
            if first:
                self._end_with_process()
                threading.Thread(target=self._follow, name="claim", daemon=True).start()
        self._check_lost()

    def claim_once(self) -> None:
        """Claim without renewing: the source that is started next takes its place. Raises what `hold` raises."""
        try:
            self._renew()
        finally:
            self._ended.set()
            self._drop_log()

    def withdraw(self) -> None:
        """Say that the query reads no more, within seconds. Safe to call again."""
        if is_source_process():
            signal.alarm(DEAD_AFTER)  # the system ends the process, whatever a client waits for at its end
        self._ended.set()
        has_lock = self._lock.acquire(timeout=WITHDRAWN_WITHIN)
        try:
            if self._log is not None and self._held_at is not None and self._lost is None:
                with contextlib.suppress(BrokerError, KafkaException):  # then the claim counts until it is old
                    self._log.write(*self._heartbeat(ended=True), within=WITHDRAWN_WITHIN)
            self._drop_log()
        finally:
            if has_lock:
                self._lock.release()

    def _follow(self) -> None:
        while not self._ended.wait(self._renew_every) and self._lost is None:
            if time.monotonic() - self._asked_at > ASKED_WITHIN:
                continue
            try:
                self._renew()
            except (BrokerError, KafkaException, RetriesOwnedError, NoPolicyTopicError):
                continue  # the next batch raises it: `hold` finds what was lost, and renews what is stale

    def _renew(self) -> None:
        with self._lock:
            if self._ended.is_set() or self._lost is not None:
                return
            log = self._log = self._log or PolicyLog(self._client, self._names)
            try:
                log.read_to_end()
                self._lost = self._who_else(log) if self._held_at is None else log.in_place_of_last
                if self._lost is None:
                    log.write(*self._heartbeat())
                    self._lost = log.in_place_of_last
            except BaseException:
                self._drop_log()
                raise
            if self._lost is None:
                self._held_at = time.monotonic()
            self._check_lost()

    def _drop_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _who_else(self, log: PolicyLog) -> Reader | None:
        """Return who may not read next to this query, once it had the time to end."""
        until = time.monotonic() + self._patience
        while True:
            now_ms = _now_ms()
            other = log.readers.against(reader_of("", self._heartbeat()[1], now_ms), now_ms)
            if other is None or time.monotonic() > until:
                return other
            time.sleep(0.25)
            log.read_to_end()

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise RetriesOwnedError(self._names.group, self._lost, self._query.instance)

    def _heartbeat(self, *, ended: bool = False) -> tuple[QueryTold, SubscriptionRecord]:
        query = msgspec.structs.replace(self._query, renewed=self._held_at is not None, ended=ended)
        return query, msgspec.structs.replace(self._record, at=_now_ms(), query=query)

    def _end_with_process(self) -> None:
        """Withdraw the claim when Spark ends its source's process. A process of another kind is left as it is."""

        def end(number: int, _frame: object) -> None:
            # A second one would run within the first, and wait for a lock that this thread has.
            signal.signal(number, signal.SIG_IGN)
            self.withdraw()
            os._exit(128 + number)

        if is_source_process():
            signal.signal(signal.SIGTERM, end)


def is_source_process() -> bool:
    """Whether this process is the one that Spark gives a source at the driver."""
    return getattr(sys.modules["__main__"].__spec__, "name", "") == SOURCE_PROCESS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PolicyLog:
    """The control log of a group, read from its first record on, and this query's last heartbeat in it."""

    def __init__(self, client: Mapping[str, str], names: Names) -> None:
        self._log, self._state = ControlLog(Cluster(client, CLIENT), names), ControlState(OF_INSTANCE)
        # Kept for as long as the query runs: its end has no time for a new connection.
        self._writer = RecordWriter(self._log.cluster)
        self._last: Reader | None = None

    def close(self) -> None:
        """Drop what was not written yet."""
        self._writer.close()

    @property
    def readers(self) -> Readers:
        """Who reads the retries, as far as the log was read."""
        return self._state.readers

    @property
    def in_place_of_last(self) -> Reader | None:
        """Who reads instead, if the heartbeat that was written last does not count."""
        return None if self._last is None else self.readers.in_place_of(self._last)

    def read_to_end(self) -> None:
        """Read what was written up to now. Raises NoPolicyTopicError and BrokerError."""
        try:
            if self._log.is_there():
                self._log.read_on(self._state)
                return
        except DeniedError as error:
            raise NoPolicyTopicError(self._log.names.policy) from error
        raise NoPolicyTopicError(self._log.names.policy)

    def write(self, query: QueryTold, record: SubscriptionRecord, within: float = ANSWER_SECONDS) -> None:
        """Write a heartbeat of a query, and read on to it. `within`: seconds. Raises BrokerError."""
        self._writer.send(self._log.names.policy, key := key_of(query), render_record(record))
        offset = self._writer.confirm("the query's heartbeat is not known to be written", within)[key]
        if not query.ended:
            self._log.read_on(self._state, end=offset + 1)
            self._last = reader_of("", record, self._state.written_at)
