"""Decide what a write error is about: the topic, the target partition, this record, or none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

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
