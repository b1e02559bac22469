"""The transactional producer of redrives and imports.

A group has one transactional id for them, so the later command wins. The history of redrives is one committed offset
for each partition, whatever was redriven. Two redrives at once would overwrite each other's history. So they share
their transactional id, and Kafka fences the one that began first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.dlq.topics import QUIET
from reconsume.sidecar.errors import BrokerError, ReconsumeError
from reconsume.sidecar.kafka.blocking_calls import CallTimeoutError
from reconsume.sidecar.kafka.client_config import BATCH_BYTES, producer_config
from reconsume.sidecar.kafka.committer.record_form import STRONGEST
from reconsume.sidecar.kafka.committer.refusing_partitions import State
from reconsume.sidecar.kafka.committer.transaction import API_LIMIT, TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.sidecar.kafka.committer.write_errors import error_in
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
