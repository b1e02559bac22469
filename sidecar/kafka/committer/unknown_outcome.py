"""End the doubt about a transaction: the committed progress says whether it happened (contract 7.4)."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.core.commit_batch import CommitBatch, CommitResult, PartitionCommit, SettledRecord
from sidecar.core.progress import Progress
from sidecar.core.progress_stamp import decode_at
from sidecar.core.record import Partition, Record
from sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from sidecar.kafka.errors import raise_partition_errors
from sidecar.observability.thread_watch import StopRequest

AGAIN_AFTER = 0.1
"""Seconds before the committed progress is asked for again."""
ASK_LIMIT = 10.0
"""Seconds for one request for the committed progress."""


def result_in_doubt(
    batch: CommitBatch,
    written: Mapping[Partition, tuple[int, str]],
    supply: ReplaceableProducer,
    config: Mapping[str, object],
    stopping: StopRequest,
) -> CommitResult | None:
    """Return the result of a batch by the committed progress. None if it did not happen, or `stopping` is set.

    `written`: the offsets and metadata that the batch carried. `config`: of a consumer that reads the progress. Asks
    until Kafka answers: to commit again without its word could write every copy twice. The producer was replaced
    before, which ended what the old one had open.
    """
    credentials = supply.credentials
    pending, reader = credentials.pending, None
    topic_partitions = [TopicPartition(*source) for source in batch.commits]
    try:
        while not stopping.is_set():
            try:
                if reader is None:
                    pending, reader = credentials.pending, Consumer(credentials.newest(config))
                committed = raise_partition_errors(reader.committed(topic_partitions, timeout=ASK_LIMIT))
                if is_written(committed, written):
                    return CommitResult(batch, committed=True, done=batch.entries)
                return result_from_progress(batch, _progress(committed))
            except KafkaException as failure:
                supply.warn("progress-unanswered", "Kafka does not answer yet which progress is committed: %s", failure)
                stopping.wait(AGAIN_AFTER)
                # Kafka, or the client itself, may refuse the reader's own credentials.
                if reader is not None and credentials.pending is not pending:
                    reader.close()
                    reader = None
    finally:
        if reader is not None:
            reader.close()
    return None


def is_written(committed: list[TopicPartition], written: Mapping[Partition, tuple[int, str]]) -> bool:
    """Whether the committed offsets and metadata are those of the batch, to the letter.

    Metadata that was left out says nothing: the batch before may have had the same offset.
    """
    return bool(committed) and all(
        (topic_partition.offset, topic_partition.metadata)
        == written.get(Partition(topic_partition.topic, topic_partition.partition))
        and topic_partition.metadata
        for topic_partition in committed
    )


def _progress(committed: list[TopicPartition]) -> dict[Partition, Progress]:
    sources = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition for topic_partition in committed
    }
    return {
        source: decode_at(source, topic_partition.offset, topic_partition.metadata)
        for source, topic_partition in sources.items()
    }


def result_from_progress(batch: CommitBatch, progress: Mapping[Partition, Progress]) -> CommitResult | None:
    """Return what the committed progress says of a batch; None if it covers none of its records."""
    if all(progress[source] == share.progress for source, share in batch.commits.items()):
        return CommitResult(batch, committed=True, done=batch.entries)
    done, again = list[SettledRecord](), list[SettledRecord]()
    for entry in batch.entries:
        source = entry.record.source
        is_done = _covers(progress[source], entry.record, batch.commits[source])
        (done if is_done else again).append(entry)
    return CommitResult(batch, committed=False, done=tuple(done), again=tuple(again)) if done else None


def _covers(progress: Progress, record: Record, sent: PartitionCommit) -> bool:
    """Whether the progress covers the record. `sent`: its partition's part of the transaction in doubt.

    Progress that was made in a former log of the same name covers no record of this one. All of a level's new log is
    younger than what was read of the old one. The owner of a queue begins another log with another time, and until its
    first commit Kafka holds what the last owner has committed of the former one (`kafka/queues/log_watch.py`).
    """
    if progress.last_at_ms is None:
        return progress.covers(record.offset)
    is_of_queue = sent.under is not None  # also if its headers cannot be read
    former = progress.last_at_ms != sent.progress.last_at_ms if is_of_queue else progress.last_at_ms < record.timestamp
    return progress.covers(record.offset) and not former
