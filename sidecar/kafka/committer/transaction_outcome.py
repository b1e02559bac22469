"""How a transaction may end other than by its commit, and what its client is told where Kafka itself says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError

from reconsume.sidecar.core.commit_batch import Refusal
from reconsume.sidecar.kafka.committer.write_errors import refused_offsets

STALE_MEMBER = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)


STALLED = KafkaError(KafkaError._MSG_TIMED_OUT, "a partition takes no records", False, False, True)
REFUSED = KafkaError(KafkaError._FAIL, "records were refused", False, False, True)
THROTTLED = KafkaError(KafkaError.THROTTLING_QUOTA_EXCEEDED, "a quota holds records back", False, False, True)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Broker: Topic authorization failed", False, False, True)
DOUBTFUL = KafkaError(KafkaError._FAIL, "a request may have been sent twice", False, False, True)

T = TypeVar("T")


# A producer with unconfirmed or refused records cannot go on: librdkafka gives their sequence numbers to the next
# records, which the broker takes for duplicates (confirmed, committed, and not in the topic: 2.16), or refuses for the
# gap.
class Aborted(Exception):  # noqa: N818 - an outcome of a transaction, not a fault of the program
    """The transaction certainly did not happen. `refusals` are the entries that the broker refuses.

    `record_code`: the code of the first error of a record, 0 if there was none. `throttled`: only a quota of the
    brokers has held it back. `refused_notes`: why Kafka does not take the notes; empty if it does.
    `refused_offsets`: the partitions whose progress Kafka refuses, as far as it names them.
    `producer_unusable`: the producer must not be used any more. librdkafka gives the sequence numbers of records that
    an abort has purged to the next records. The broker may have the purged ones: sent, but not confirmed when the
    connection was lost. It then takes the next records for duplicates: confirmed, committed, and not in the topic
    (measured on 2.16.0: MsgPossiblyPersisted, then "advancing epoch base msgid"). A record that the broker has refused
    has a sequence number too. Then the next transaction with its partition fails ("skipped sequence numbers").
    """

    def __init__(
        self,
        error: KafkaError,
        refusals: tuple[Refusal, ...],
        *,
        producer_unusable: bool,
        record_code: int = 0,
        refused_notes: str = "",
    ) -> None:
        super().__init__(refusals[0].reason if refusals else error.str())
        self.refusals = refusals
        self.about = frozenset(refusal.where for refusal in refusals)
        """The topics and partitions that accept nothing, for the log."""
        self.producer_unusable, self.record_code = producer_unusable, record_code
        self.refused_notes = refused_notes
        self.throttled = error is THROTTLED
        self.refused_offsets = refused_offsets(error)
        self.stale_member = error.code() in STALE_MEMBER
        self.metadata_too_long = error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE


class OutcomeUnknown(Exception):  # noqa: N818
    """The transaction may have happened or not, and this producer cannot be used any more."""


class Stalled(Exception):  # noqa: N818
    """The cluster is reachable, but some partition takes no record."""


class QuotaExceeded(Exception):  # noqa: N818
    """A quota of the brokers holds records back for longer than a transaction may last."""


class RecordsRefused(Exception):  # noqa: N818
    """Kafka has refused records, so the client sends no more of the transaction."""


def outcome_of(transact: Callable[[], T]) -> T | Aborted | OutcomeUnknown:
    """Return what a transaction returns, or how else it has ended: for callers who ask Kafka what to make of that.

    A request that fails while an error is handled keeps that error for ever (`kafka/errors.py`): here, the batch and
    the client. The outcome has neither the frames that it has passed nor the error before it.
    """
    try:
        return transact()
    except (Aborted, OutcomeUnknown) as ended:
        ended.__cause__ = ended.__context__ = None
        return ended.with_traceback(None)
