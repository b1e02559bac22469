"""The transactional producer of redrives and imports.

A group has one transactional id for them, so the later command wins. The history of redrives is one committed offset
for each partition, whatever was redriven. Two redrives at once would overwrite each other's history. So they share
their transactional id, and Kafka fences the one that began first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.core.commit_batch import SettledRecord
from sidecar.dlq.topics import QUIET
from sidecar.errors import BrokerError, ReconsumeError
from sidecar.kafka.blocking_calls import CallTimeoutError
from sidecar.kafka.client_config import producer_config
from sidecar.kafka.committer.delivery_errors import error_in
from sidecar.kafka.committer.transaction import API_LIMIT, OutcomeUnknown, TransactionalProducer
from topics.names import Names

FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
RIGHTS = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE and DESCRIBE on transactional id {names.redrive_group}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "READ on group {names.redrive_group}",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "WRITE and DESCRIBE on topics {names.ready} and {names.events}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IDEMPOTENT_WRITE on the cluster",
}


class SupersededError(ReconsumeError):
    """Raised if another command of the group writes to Kafka by now: this command must stop."""


class DlqProducer(TransactionalProducer):
    """A producer that is ready for use and has fenced all others of its kind.

    Raises BrokerError if it cannot be prepared, SupersededError if it is fenced meanwhile.
    """

    def __init__(self, kafka: Mapping[str, str], names: Names) -> None:
        identity = names.redrive_group
        super().__init__({**producer_config(kafka, identity, f"reconsume-{identity}"), **QUIET})
        self._names = names
        try:
            self.prepare()
            self.counts = self.partitions()
            """The number of partitions of each topic."""
        except (KafkaException, CallTimeoutError) as failure:
            raise self._sentence(failure) from failure

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

    def _abort(self, error: KafkaError, entries: Sequence[SettledRecord], *, stalled: bool = False) -> None:
        self._expect_mine(error)
        try:
            super()._abort(error, entries, stalled=stalled)
        except OutcomeUnknown as unsure:
            # The abort may be the first call to report the fencing, after a commit that said "Unknown broker error".
            if isinstance(unsure.__cause__, KafkaException | SystemError):
                self._expect_mine(error_in(unsure.__cause__))
            raise
        finally:
            if error.code() in RIGHTS:
                raise BrokerError(self._lacks(error))

    def _expect_mine(self, error: KafkaError) -> None:
        if error.code() in FENCED:
            raise SupersededError(
                f"another `dlq` command of group {self._names.group} has begun and goes on, so this one stops "
                f"(or it stood still for more than 10 s). What was committed stays, and is not redriven again"
            ) from None

    def _sentence(self, failure: KafkaException | CallTimeoutError) -> BrokerError:
        if isinstance(failure, CallTimeoutError):
            return BrokerError(f"no transaction can be begun: {failure} did not come back")
        error: KafkaError = failure.args[0]
        self._expect_mine(error)
        if error.code() in RIGHTS:
            return BrokerError(self._lacks(error))
        return BrokerError(f"no transaction can be begun: {error.str()}")

    def _lacks(self, error: KafkaError) -> str:
        return f"a right is missing: {RIGHTS[error.code()].format(names=self._names)} ({error.str()})"
