"""One transactional producer: one batch, one Kafka transaction, and the kinds of its failure.

`begin → produce the copies and events → send the offsets with the consumer's group metadata → commit`. Every error has
one of three answers. Make the same call again (retriable); abort and commit again (`Aborted`); or replace the producer
(`OutcomeUnknown`: only Kafka knows what happened).

A producer whose request may have been sent twice is replaced as well, even after a success (`client_reports.py`).

The client does not keep its own timeouts: after a broker loss `send_offsets_to_transaction(…, 10)` has returned after
44 s, or never (librdkafka#5511, #5456; measured on Kafka 4.3). So each producer has one thread that makes its blocking
calls (`BlockingCalls`). The caller waits for that thread only until its limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.kafka.clients import answers, make_client
from reconsume.sidecar.kafka.committer.client_reports import (
    ClientLog,
    EntryReports,
    Errors,
    Located,
    Throttle,
)
from reconsume.sidecar.kafka.committer.target_topics import State, Targets
from reconsume.sidecar.kafka.committer.transaction_outcome import (
    DENIED,
    DOUBTFUL,
    PRODUCER_ERRORS,
    REFUSED,
    STALLED,
    THROTTLED,
    Aborted,
    OutcomeUnknown,
    QuotaExceeded,
    RecordsRefused,
    Stalled,
    denials,
    error_in,
    refusal_of,
)
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.topics.transition_records import Copy

Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class CallTimeoutError(Exception):
    """A call did not return in time. Its producer must not be used or destroyed any more."""


class BlockingCalls:
    """One thread that makes the blocking calls of one producer."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stuck = False
        """Whether a call did not return in time."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, limit: float, function: Callable[..., Any], *args: Any) -> None:
        """Make a call and wait for it for at most `limit` seconds.

        Raises what the call raises, or CallTimeoutError after `limit` seconds.
        """
        self._jobs.put((function, args))
        try:
            failure = self._answers.get(timeout=limit)
        except Empty:
            self.stuck = True
            raise CallTimeoutError(getattr(function, "__name__", "call")) from None
        try:
            if failure is not None:
                raise failure
        finally:
            # The traceback refers to this frame: an error that the frame names would hold itself, and all its callers.
            del failure

    def end(self, last: list[Any]) -> None:
        """End the thread once it is idle. Let it destroy the client, the only element of `last`.

        To destroy a client takes as long as its own threads take to end. With a call under way it may never return.
        """
        self._jobs.put((last.clear, ()))
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._answers.put(_failure_of(*job))
            del job  # while the thread waits, it must not hold the client by a bound method


def _failure_of(function: Callable[..., Any], args: tuple[Any, ...]) -> BaseException | None:
    try:
        function(*args)
    except BaseException as failure:  # noqa: BLE001 - the caller raises it
        return failure
    return None


API_LIMIT = 5.0
"""Seconds that librdkafka is given for one call."""
HARD_LIMIT = 20.0
"""Seconds after which a call counts as stuck: four times API_LIMIT."""

CONFIRM_LIMIT = 0.1
"""Seconds of one wait for the broker to confirm all records before the offsets are sent. So an error of the offsets (a
rebalance) finds no record under way, and the producer stays usable. This takes no longer than both side by side."""

STALLS = 20
"""Waits of CONFIRM_LIMIT without one more confirmed record, after which a partition counts as refusing records. It has
no leader, or too few replicas in sync. Without this the client waits for 10 s (`message.timeout.ms`) and fails the
whole batch."""
NOTES = -1
"""The index of the notes among the entries of a transaction."""
TOPIC_LIMIT = 20.0
"""Seconds for the answer about one topic. A cluster of 200 000 partitions has taken six."""
LOOK_LIMIT = 20.0
"""Seconds after which a look asks for no further topic. A group has dozens, and the committer's thread must turn."""

Report: TypeAlias = Callable[[KafkaError | None, Message], None]


class TransactionalProducer:
    """A producer with the thread of its blocking calls. Call `prepare` first, and `end` at the end, come what may."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.client_log, self.throttle = ClientLog(config), Throttle()
        self._producer = make_client(Producer, {**self.client_log.watched(config), "throttle_cb": self.throttle.hear})
        self.timestamp: Callable[[], int] = lambda: 0
        """Returns the time to write records with (epoch ms); 0: the client's own."""
        self._calls = BlockingCalls(f"guard-{config['transactional.id']}")
        self.sent_offsets = False
        """Whether offsets were part of its last transaction."""
        self._errors: Errors = {}
        self._located: Located = {}
        self._reports: list[EntryReports] = []
        """By index of the entry; kept for later batches."""
        self._notes: Sequence[Copy] = ()
        """What owners note in its transaction."""
        self._records_only = False
        """Whether neither the offsets nor the commit were sent: the transaction cannot have happened."""

    def prepare(self) -> None:
        """Fence the previous producer of this id and end what it left open.

        This takes 0.6 s instead of the transaction's timeout. Raises KafkaException (call again if it is retriable) or
        CallTimeoutError.
        """
        self._calls.call(HARD_LIMIT, self._producer.init_transactions, 2 * API_LIMIT)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use this login from the next connection on; for any thread."""
        self._producer.set_sasl_credentials(username, password)

    def end(self) -> None:
        """Give the client up. Its own thread destroys it, once no call is under way. Returns at once."""
        last = [self._producer]
        del self._producer
        self._calls.end(last)

    def look_up_topics(self, names: Iterable[str], whole: float = LOOK_LIMIT) -> Targets:
        """Return what Kafka says of these topics, in their order, for `whole` seconds and an answer's time at most.

        The request never creates a topic. Blocks; for any thread.
        """
        topics = named_topics(self._producer, names, TOPIC_LIMIT, whole)
        states = {
            name: [State(metadata.leader, len(metadata.isrs)) for _, metadata in sorted(topic.partitions.items())]
            for name, topic in topics.described.items()
        }
        return Targets(states, topics.absent)

    @property
    def doubtful(self) -> bool:
        """Whether a request of its last transaction may have been sent twice. It takes no further transaction then."""
        return self.client_log.doubtful

    def answers(self) -> bool:
        """Whether the cluster answers at all."""
        return answers(self._producer)

    def commit(
        self,
        entries: Sequence[SettledRecord],
        offsets: list[TopicPartition],
        metadata: Any,
        partitions: Mapping[str, int],
        notes: Sequence[Copy] = (),
    ) -> Located:
        """Commit the writes of the entries, the notes, and the offsets with the consumer's group metadata.

        Returns where copies lie in queue topics. Raises Aborted or OutcomeUnknown if that fails.
        """
        self._notes = notes
        self._transact(entries, partitions, lambda: self._send_offsets(offsets, metadata))
        return dict(self._located)

    def write(self, entries: Sequence[SettledRecord], partitions: Mapping[str, int]) -> None:
        """Commit only the writes of entries that come from no consumer.

        Raises Aborted or OutcomeUnknown if that fails.
        """
        self._notes = ()
        self._transact(entries, partitions, lambda: None)

    def _transact(
        self, entries: Sequence[SettledRecord], partitions: Mapping[str, int], then: Callable[[], None]
    ) -> None:
        if self.doubtful:
            raise Aborted(DOUBTFUL, (), producer_unusable=True)
        self._begin()
        try:
            # Behind the handlers: what the abort asks may fail, and a failure there would keep what is handled.
            if (error := self._run(entries, partitions, then)) is not None:
                self._abort(error, entries, stalled=error is STALLED)
        finally:
            self._look_back()

    def _run(
        self, entries: Sequence[SettledRecord], partitions: Mapping[str, int], then: Callable[[], None]
    ) -> KafkaError | None:
        """Make the calls of a transaction. Return why it must be aborted. Raises OutcomeUnknown if a call hangs."""
        try:
            self._producer.begin_transaction()
            self._produce(entries, partitions)
            if written := sum(len(entry.writes) for entry in entries) + len(self._notes):
                self._confirm(written)
            self._records_only = False
            then()
            self._call(self._producer.commit_transaction, API_LIMIT)
        except CallTimeoutError as stuck:
            raise OutcomeUnknown(f"{stuck} did not come back") from None
        except Stalled:
            return STALLED
        except QuotaExceeded:
            return THROTTLED
        except RecordsRefused:
            return DENIED if self.client_log.denied else REFUSED
        except (KafkaException, SystemError) as failure:
            return error_in(failure)
        return None

    def _begin(self) -> None:
        """Forget the transaction before, and what its client's log said."""
        self._hear()
        self.client_log.clear()
        self._errors.clear()
        self._located.clear()
        self.throttle.longest = 0.0
        self._records_only, self.sent_offsets = True, False

    def _look_back(self) -> None:
        """Find out whether a request of the transaction may have been sent twice."""
        self._hear()
        self.client_log.judge()

    def _hear(self) -> None:
        """Take in every report of a record and every line of the client's log that has arrived."""
        with suppress(KafkaException, SystemError):  # a fatal error, which the next call of the transaction raises too
            self._producer.poll(0)

    def _confirm(self, written: int) -> None:
        """Wait until the broker has confirmed all records, or confirms no more of them.

        Raises RecordsRefused as soon as a record was refused: the client sends nothing more of a transaction that must
        be aborted (2.16). Raises Stalled if the cluster is reachable nevertheless: it has confirmed other records, or
        answers. Otherwise it is unreachable, and the calls that follow wait for it. Raises QuotaExceeded if a quota
        holds back the rest.
        """
        self._calls.call(HARD_LIMIT, self._producer.flush, CONFIRM_LIMIT)
        left, stalls = len(self._producer), 0
        while left and stalls < STALLS and not self._refused:
            self._calls.call(HARD_LIMIT, self._producer.flush, CONFIRM_LIMIT)
            before, left = left, len(self._producer)
            stalls = stalls + 1 if left == before else 0
        if self._refused:
            raise RecordsRefused
        if left and self.throttle.longest:
            raise QuotaExceeded
        if left and (left < written or self.answers()):
            raise Stalled

    @property
    def _refused(self) -> bool:
        """Whether a record or a topic was refused since the transaction began."""
        return bool(self._errors or self.client_log.denied)

    def _send_offsets(self, offsets: list[TopicPartition], metadata: Any) -> None:
        self.sent_offsets = True
        self._call(self._producer.send_offsets_to_transaction, offsets, metadata, API_LIMIT)

    def _produce(self, entries: Sequence[SettledRecord], partitions: Mapping[str, int]) -> None:
        reports, produce, at = self._reports, self._producer.produce, self.timestamp()
        while len(reports) < len(entries):
            reports.append(EntryReports(len(reports), self._errors, self._located))
        for index, entry in enumerate(entries):
            own = entry.writes[0] if len(entry.writes) > entry.outputs else None  # an output may be exact too
            for copy in entry.writes:
                report = reports[index].copied if copy is own and copy.exact else reports[index].written
                by_key = copy.key is not None and not copy.scattered
                number = -1 if by_key else copy.spread % partitions[copy.topic]
                stamp = copy.timestamp or at
                # Arguments by position are a quarter cheaper. The callback's alias `on_delivery` is None and not used.
                try:
                    produce(copy.topic, copy.value, copy.key, number, report, None, stamp, copy.headers)  # type: ignore[arg-type]
                except BufferError:
                    pass
                except KafkaException as failure:  # too large for the client itself
                    self._errors.setdefault(index, (failure.args[0], copy.topic))
                    raise
                else:
                    continue
                self._produce_later(copy, number, report, stamp)
        if self._notes:
            note_reports = EntryReports(NOTES, self._errors, self._located)
            for note in self._notes:
                number = note.spread % partitions[note.topic]
                self._produce_later(note, number, note_reports.written, at)

    def _produce_later(self, copy: Copy, number: int, report: Report, at: int) -> None:
        """Produce a copy, once the client's queue has room."""
        while True:
            with suppress(BufferError):
                self._producer.produce(copy.topic, copy.value, copy.key, number, report, None, at, copy.headers)  # type: ignore[arg-type]
                return
            self._producer.poll(0.05)

    def _abort(self, error: KafkaError, entries: Sequence[SettledRecord], *, stalled: bool = False) -> None:
        if error.fatal() or not (error.txn_requires_abort() or self._refused):
            self._hear()  # here nothing is handled; `_look_back` would hear a fatal error while this one is raised
            raise Aborted(error, (), producer_unusable=True) if self._records_only else OutcomeUnknown(error.str())
        self._hear()
        code = next((error.code() for error, _ in self._errors.values() if error.code() not in PRODUCER_ERRORS), 0)
        errors = dict(self._errors)  # before the abort purges queued records: these are reported as errors too
        denied = frozenset(self.client_log.denied)
        unusable = len(self._producer) > 0 or bool(errors)
        try:
            self._call(self._producer.abort_transaction, API_LIMIT)
        except (KafkaException, SystemError, CallTimeoutError) as failure:
            if not self._records_only:
                raise OutcomeUnknown(f"abort after {error.str()}: {failure}") from failure
            # Kafka may have no such transaction: it refused to add the first partitions to it, for want of a right.
            # It then calls the abort invalid, and the client takes that for fatal (2.16).
            unusable = True
        self._look_back()
        note_error = errors.pop(NOTES, None)
        if note_error is None and stalled:
            note_error = self._errors.get(NOTES)
        refusals = [refusal_of(entries[index], *error) for index, error in errors.items()]
        refusals += denials(entries, denied)
        if stalled:  # the abort has purged the records that no broker took; their reports name them
            purged = {index: where for index, (_, where) in self._errors.items() if index not in {*errors, NOTES}}
            refusals += [
                Refusal(entries[index], "partition", f"{where} takes no records", where)
                for index, where in purged.items()
            ]
        named = tuple(refusal for refusal in refusals if refusal is not None)
        refused_notes = next(
            (f"a right is missing: WRITE on {one.topic}" for one in self._notes if one.topic in denied), ""
        )
        if note_error is not None and note_error[0].code() not in PRODUCER_ERRORS:
            refused_notes = f"{note_error[1]}: {note_error[0].str()}"
        unusable = unusable or self.doubtful
        raise Aborted(error, named, producer_unusable=unusable, record_code=code, refused_notes=refused_notes)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Make a call; repeat the same call while its error is retriable, and never make the next one instead."""
        began = time.monotonic()
        try:
            while True:
                try:
                    self._calls.call(HARD_LIMIT, function, *args)
                    return
                except KafkaException as failure:
                    if not failure.args[0].retriable() or time.monotonic() > began + HARD_LIMIT:
                        raise
        finally:
            self.client_log.took(time.monotonic() - began)
