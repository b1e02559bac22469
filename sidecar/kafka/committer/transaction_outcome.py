"""How a transaction may end other than by its commit, and what the error of a write is about.

A transaction was aborted (`Aborted`), so that it certainly did not happen, or nobody but Kafka knows
(`OutcomeUnknown`). An abort names what Kafka refuses as far as it says so: a record, its target topic or partition
(`Refusal`), the progress of partitions, or owners' notes. What it does not name, smaller batches must find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.core.commit_batch import Refusal, RefusedBy, SettledRecord
from reconsume.sidecar.core.record import Partition

SIZE_ERRORS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
RECORD_ERRORS = SIZE_ERRORS | {
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError._BAD_MSG,
    KafkaError._INVALID_ARG,
}
"""Errors that are about the record itself, or about its company in a batch."""
TOPIC_ERRORS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)
PLACE_ERRORS = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
PRODUCER_ERRORS = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._STATE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors of the producer or the connection. They say nothing about the record that they are reported for."""


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


def refusal_of(entry: SettledRecord, error: KafkaError, where: str) -> Refusal | None:
    """Return the refusal of the entry that a write error means.

    None for every error that is not known to be about the record, its topic or its partition: one of the producer or
    the connection, or an unknown one. If it lasts, smaller batches find its cause.
    """
    about: RefusedBy
    if error.code() in TOPIC_ERRORS:
        about, where = "topic", where.partition("[")[0]
    elif error.code() in PLACE_ERRORS:
        about = "partition"
    elif error.code() in RECORD_ERRORS:
        about = "record"
    else:
        return None
    return Refusal(entry, about, f"{where}: {error.str()}", where, error.code() in SIZE_ERRORS)


def denials(entries: Iterable[SettledRecord], topics: Set[str]) -> list[Refusal]:
    """Return a refusal for each entry that writes to one of these topics, because a right on the topic is missing."""
    return [
        Refusal(entry, "topic", f"a right is missing: WRITE on topic {copy.topic}", copy.topic)
        for entry in (entries if topics else ())
        for copy in entry.writes
        if copy.topic in topics
    ]


OFFSET_OF = re.compile(r"([\w.-]+)\(\(null\)\)\[(\d+)\]\(")
"""A partition in the text of a refused TxnOffsetCommit (`rd_kafka_topic_partition_list_str`, 2.16). The client names as
many as 256 characters hold."""


OFFSET_ERRORS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.INVALID_COMMIT_OFFSET_SIZE,
    }
)
"""Errors of an offset commit that are about a partition. All others name every partition of the commit."""


def refused_offsets(error: KafkaError) -> frozenset[Partition]:
    """Return the partitions whose offsets Kafka refuses, as far as the client names them."""
    if error.code() not in OFFSET_ERRORS:
        return frozenset()
    return frozenset(Partition(topic, int(number)) for topic, number in OFFSET_OF.findall(error.str()))


def error_in(failure: BaseException) -> KafkaError:
    """Return the KafkaError behind `failure`.

    With 2.16 a fatal error (another producer has fenced this one) can surface as SystemError with the KafkaException as
    its cause. The client delivers reports although it is already raising that error, so the first access to a message
    fails.
    """
    while not isinstance(failure, KafkaException):
        if failure.__cause__ is None:
            # At times the cause is lost ("returned NULL without setting an exception"). Then return an abortable error:
            # the abort reports the real one.
            if isinstance(failure, SystemError):
                return KafkaError(KafkaError._FAIL, str(failure), False, False, True)
            raise failure
        failure = failure.__cause__
    error: KafkaError = failure.args[0]
    return error
