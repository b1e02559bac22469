"""What redrives and imports write with: their producer, and the loop that writes dead letters in transactions.

A group has one transactional id for them, so the later command wins. The history of redrives is one committed offset
for each partition, whatever was redriven. Two redrives at once would overwrite each other's history. So they share
their transactional id, and Kafka fences the one that began first.

`LetterWriter` writes a batch until it is known to be committed. After an abort it tries again; after an end that is not
known, it replaces its producer, which ends a hanging transaction, and looks whether the batch was committed. What Kafka
refuses is set aside by `ApartWriter`. `Redriver` and `Importer` say what is written, and how to look. Each is used by
one thread.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.dlq.dead_letters import QUIET, DeadLetters
from reconsume.sidecar.dlq.letters import Letter
from reconsume.sidecar.errors import BrokerError, ReconsumeError
from reconsume.sidecar.kafka.client_config import BATCH_BYTES, producer_config
from reconsume.sidecar.kafka.committer.committer import SURE_AFTER_S
from reconsume.sidecar.kafka.committer.replaceable_producer import STRONGEST
from reconsume.sidecar.kafka.committer.target_topics import State
from reconsume.sidecar.kafka.committer.transaction import API_LIMIT, CallTimeoutError, TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown, error_in, outcome_of
from reconsume.sidecar.kafka.committer.write_apart import Refusals, by_number, write_apart
from reconsume.topics.names import Names

FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
RIGHTS = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE on transactional id {names.redrive_group}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "READ on group {names.redrive_group}",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "READ on the DLQ, or WRITE on {names.ready}, {names.events} and the queues",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IDEMPOTENT_WRITE on the cluster",
}


ALL_TOPICS_LIMIT = 20.0
"""Seconds for a list of all topics. A cluster of 200 000 partitions has taken six."""
MOST_LETTERS = 500
"""Letters in one transaction at most."""
TRY_FOR = 60.0
"""Seconds during which one transaction is retried: longer than a broker takes to restart."""
RETRY_AFTER_S = 0.2
UNNAMED = 3
"""Aborts in a row that name no letter. After so many, smaller transactions must find the letter that is the cause."""


class SupersededError(ReconsumeError):
    """Raised if another command of the group writes to Kafka by now: this command must stop."""


class _Fault(NamedTuple):
    """Why a producer cannot be made ready: the error to raise, and its text."""

    kind: type[ReconsumeError]
    text: str


class DlqProducer(TransactionalProducer):
    """A producer that is ready for use and has fenced all others of its kind. Its maker calls `end`.

    Raises BrokerError if it cannot be prepared, SupersededError if it is fenced meanwhile; then nothing is left of it.
    `longest`: bytes of a batch of records that the target topics accept.
    """

    def __init__(self, kafka: Mapping[str, str], names: Names, longest: int = BATCH_BYTES) -> None:
        identity = names.redrive_group
        # A letter may be in the DLQ only because it was packed. Here the CPU does not matter.
        config = producer_config({"compression.type": STRONGEST, **kafka}, identity, f"reconsume-{identity}")
        # Not QUIET itself: the client's log tells which topics are denied, and whether a request was sent twice.
        super().__init__({**config, "logger": QUIET["logger"], "batch.size": min(BATCH_BYTES, longest)})
        self._names = names
        self.counts: Mapping[str, int] = {}
        """The number of partitions of each topic."""
        if (fault := self._make_ready()) is not None:
            # Raised where no other error is at hand: that one would hold the client by the frames that it has passed.
            self.end()
            raise fault.kind(fault.text)

    def _make_ready(self) -> _Fault | None:
        """Make the producer ready. Return why that is impossible."""
        try:
            self.prepare()
            self.counts = {name: len(states) for name, states in self.states().items()}
        except CallTimeoutError as stuck:
            return _Fault(BrokerError, f"no transaction can be begun: {stuck} did not come back")
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() in FENCED:
                return _Fault(SupersededError, self._superseded())
            lacks = error.code() in RIGHTS
            return _Fault(BrokerError, self._lacks(error) if lacks else f"no transaction can be begun: {error.str()}")
        return None

    def states(self) -> dict[str, list[State]]:
        """Return the state of every partition of each topic of the cluster. Raises KafkaException."""
        topics = self._producer.list_topics(timeout=ALL_TOPICS_LIMIT).topics
        return {
            name: [State(partition.leader, len(partition.isrs)) for _, partition in sorted(topic.partitions.items())]
            for name, topic in topics.items()
            if topic.error is None
        }

    def redrive(self, entries: Sequence[SettledRecord], offsets: list[TopicPartition], metadata: Any) -> None:
        """Commit the writes and the redrive history in one transaction.

        `metadata` is that of a consumer of the redrive group, which need not be a member of the group. Raises Aborted,
        OutcomeUnknown, SupersededError, and BrokerError if a right is missing.
        """
        self._transact(
            entries,
            self.counts,
            lambda: self._call(self._producer.send_offsets_to_transaction, offsets, metadata, API_LIMIT),
        )

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            super()._call(function, *args)
        except (KafkaException, SystemError) as failure:
            # An abort may be the first call to report the fencing, after a commit that said "Unknown broker error".
            self._expect_mine(error_in(failure))
            raise

    def _abort(self, error: KafkaError, entries: Sequence[SettledRecord], *, stalled: bool = False) -> None:
        self._expect_mine(error)
        try:
            super()._abort(error, entries, stalled=stalled)
        except (Aborted, OutcomeUnknown) as ended:
            if error.code() in RIGHTS and not (isinstance(ended, Aborted) and ended.refusals):
                raise BrokerError(self._lacks(error)) from None
            raise

    def _expect_mine(self, error: KafkaError) -> None:
        if error.code() in FENCED:
            raise SupersededError(self._superseded()) from None

    def _superseded(self) -> str:
        return (
            f"another `dlq` command of group {self._names.group} has begun and goes on, so this one stops "
            f"(or it stood still for more than 10 s). What was committed stays, and is not redriven again"
        )

    def _lacks(self, error: KafkaError) -> str:
        return f"a right is missing: {RIGHTS[error.code()].format(names=self._names)} ({error.str()})"


class LetterWriter(ABC):
    """Writes dead letters in transactions. Making one fences all other redrives and imports of the group.

    `limit`: bytes of a batch of records that the target topics accept. `stop`: once it is set, nothing is tried again.
    `fence`: False makes a writer that cannot write, for a dry run. A context manager, whose end closes its producer.
    """

    def __init__(
        self, letters: DeadLetters, limit: int, stop: threading.Event | None = None, *, fence: bool = True
    ) -> None:
        self._letters, self._limit, self._stop = letters, limit, stop or threading.Event()
        self._producer = DlqProducer(letters.cluster.kafka, letters.names, limit) if fence else None

    def close(self) -> None:
        """End the producer."""
        if self._producer is not None:
            self._producer.end()
            self._producer = None

    def write_letters(self, letters: Sequence[Letter]) -> None:
        """Write letters, in one transaction unless Kafka refuses it; `_refuse` is called with each that is refused.

        Raises BrokerError if it is not possible within TRY_FOR, or the stop event is set, and SupersededError.
        """
        write_apart(letters, self._write_batch, self._refuse)

    def _write_batch(self, batch: list[Letter], _unsent: list[Letter]) -> Refusals | None:
        """Write letters in one transaction. Return those that Kafka refuses; None once it is committed."""
        deadline, unnamed = time.monotonic() + TRY_FOR, 0
        while True:
            producer, entries = self._producer or self._renewed(), self._entries_of(batch)
            ended = outcome_of(partial(self._send, producer, entries))
            if ended is None:
                return None
            refusals = ended.refusals if isinstance(ended, Aborted) else ()
            if isinstance(ended, OutcomeUnknown) or ended.producer_unusable:
                self._renewed()
                if self._has_happened(batch, SURE_AFTER_S if isinstance(ended, OutcomeUnknown) else 0.0):
                    return None
            self._note_refusals(refusals)
            if refusals:
                return by_number(entries, refusals)
            unnamed += 1
            if unnamed >= UNNAMED and len(batch) > 1:
                return {}
            if time.monotonic() > deadline or self._stop.is_set():
                raise BrokerError(self._stopped_text(str(ended)))
            time.sleep(RETRY_AFTER_S)

    def _renewed(self) -> DlqProducer:
        """Replace the producer. The new one ends a hanging transaction of the old one."""
        self.close()
        self._producer = DlqProducer(self._letters.cluster.kafka, self._letters.names, self._limit)
        return self._producer

    @abstractmethod
    def _note_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Take note of what Kafka refuses. Raises BrokerError if that ends the command."""

    @abstractmethod
    def _entries_of(self, batch: Sequence[Letter]) -> list[SettledRecord]:
        """Return the writes of letters, one entry for each."""

    @abstractmethod
    def _send(self, producer: DlqProducer, entries: Sequence[SettledRecord]) -> None:
        """Run one transaction. Raises Aborted and OutcomeUnknown."""

    @abstractmethod
    def _has_happened(self, batch: Sequence[Letter], sure_after_s: float) -> bool:
        """Return whether the last transaction was committed. That it was not must be so for `sure_after_s`."""

    @abstractmethod
    def _refuse(self, letter: Letter, refusal: Refusal) -> None:
        """Take note of a letter that Kafka refuses."""

    @abstractmethod
    def _stopped_text(self, cause: str) -> str:
        """Return why the command cannot go on, and what to do, as one sentence."""
