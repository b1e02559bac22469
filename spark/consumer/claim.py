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
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from reconsume.sidecar.errors import BrokerError
from reconsume.spark.consumer.brokers import QUIET, ControlLog, LogRecord
from reconsume.topics.client_rules import checked_client
from reconsume.topics.names import Names
from reconsume.topics.ownership import Reader, Readers, key_of, reader_of
from reconsume.topics.policy_record import (
    INSTANCE,
    OWNER,
    PARTITION,
    QueryTold,
    SubscriptionRecord,
    heartbeat_subscription,
    parse_record,
    render_record,
)

RENEW_EVERY = 15.0
"""Seconds between two heartbeats."""
STALE_AFTER = 45.0
"""Seconds without a heartbeat after which a batch waits for the next one: after 60 s somebody else may read."""
ANSWER_WITHIN = 10.0
"""Seconds that the brokers may take for one heartbeat."""
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
        query = QueryTold(name, application, socket.gethostname(), _now_ms(), uuid.uuid4().hex, gated=gated)
        subscription, digest = heartbeat_subscription(dict.fromkeys(topics, "*"))
        self._record = SubscriptionRecord(
            subscription, 0, subscribed=digest, mode="spark", started=query.since, query=query
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
        self._renew()
        self._ended.set()
        if self._log is not None:
            self._log.close()

    def withdraw(self) -> None:
        """Say that the query reads no more, within seconds. Safe to call again."""
        if is_source_process():
            signal.alarm(DEAD_AFTER)  # the system ends the process, whatever a client waits for at its end
        self._ended.set()
        has_lock = self._lock.acquire(timeout=WITHDRAWN_WITHIN)
        try:
            log, self._log = self._log, None
            if log is not None and self._held_at is not None and self._lost is None:
                with contextlib.suppress(BrokerError, KafkaException):  # then the claim counts until it is old
                    log.write(self._heartbeat(ended=True), WITHDRAWN_WITHIN)
            if log is not None:
                log.close()
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
                    log.write(self._heartbeat(), ANSWER_WITHIN)
                    self._lost = log.in_place_of_last
            except BaseException:
                self._log = None
                log.close()
                raise
            if self._lost is None:
                self._held_at = time.monotonic()
            self._check_lost()

    def _who_else(self, log: PolicyLog) -> Reader | None:
        """Return who may not read next to this query, once it had the time to end."""
        until = time.monotonic() + self._patience
        while True:
            now_ms = _now_ms()
            other = log.readers.against(reader_of("", self._heartbeat(), now_ms), now_ms)
            if other is None or time.monotonic() > until:
                return other
            time.sleep(0.25)
            log.read_to_end()

    def _check_lost(self) -> None:
        if self._lost is not None:
            query = self._record.query
            raise RetriesOwnedError(self._names.group, self._lost, query.instance if query else "")

    def _heartbeat(self, *, ended: bool = False) -> SubscriptionRecord:
        assert self._record.query is not None
        query = msgspec.structs.replace(self._record.query, renewed=self._held_at is not None, ended=ended)
        return msgspec.structs.replace(self._record, at=_now_ms(), query=query)

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
    """The control log of a group, as far as it says who reads the retries. It is read from its first record on."""

    def __init__(self, client: Mapping[str, str], names: Names) -> None:
        self.readers = Readers()
        self.in_place_of_last: Reader | None = None
        """Who reads instead, if the record that `write` wrote last does not count."""
        self._topic = names.policy
        self._log = ControlLog(client, names.policy, ANSWER_WITHIN)
        safe = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 10_000, "linger.ms": 0}
        self._producer = checked_client(Producer, {**QUIET, **client, **safe})
        self._last: tuple[int, SubscriptionRecord] | None = None
        """The offset of the record that was written last, and its content."""

    def close(self) -> None:
        """Drop what was not written yet."""
        self._producer.purge()

    def read_to_end(self) -> None:
        """Read what was written up to now. Raises NoPolicyTopicError, and what Kafka's clients raise."""
        try:
            self._take(self._log.news())
        except (LookupError, KafkaException) as error:
            if isinstance(error, KafkaException) and error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise NoPolicyTopicError(
                f"the topic {self._topic} is missing, or this user has no right to see it (READ and WRITE on it). "
                "Readers of a group's retries need it: `reconsume topics apply` creates it"
            ) from error
        if self._last is not None:
            self.in_place_of_last = self._judge(self._last[1])

    def write(self, record: SubscriptionRecord, within: float) -> None:
        """Write a heartbeat, and read on to it. `within`: seconds. Raises what Kafka's clients raise."""
        assert record.query is not None
        landed: list[Message | KafkaError] = []
        self._producer.produce(
            self._topic,
            render_record(record),
            key_of(record.query),
            PARTITION,
            on_delivery=lambda error, message: landed.append(error or message),
        )
        self._producer.flush(within)
        if not landed or isinstance(landed[0], KafkaError):
            raise KafkaException(landed[0] if landed else KafkaError(KafkaError._TIMED_OUT))
        offset = landed[0].offset() or 0
        self._last = offset, record
        if not record.query.ended:
            self._take(self._log.until(offset + 1))

    def _take(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.key is None or not (record.key == OWNER or record.key.startswith(INSTANCE)):
                continue
            self.readers.hear(parse_record(record.key, record.value), record.at)
            if self._last is not None and record.offset == self._last[0]:
                self._last = record.offset, msgspec.structs.replace(self._last[1], at=record.at)
                self.in_place_of_last = self._judge(self._last[1])

    def _judge(self, record: SubscriptionRecord) -> Reader | None:
        return self.readers.in_place_of(reader_of("", record, record.at))
