"""End the doubt about a transaction: the committed progress says whether it happened (contract 7.4)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, PartitionCommit, SettledRecord
from reconsume.sidecar.core.progress import Progress, is_recreated
from reconsume.sidecar.core.progress_codec import decode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.errors import raise_partition_errors
from reconsume.sidecar.observability.thread_watch import StopRequest

AGAIN_AFTER = 0.1
"""Seconds before the committed progress is asked for again."""
ASK_LIMIT = 10.0
"""Seconds for one request for the committed progress."""
SURE_AFTER_S = 2.0
"""For so long Kafka must say that a transaction did not happen. A coordinator that has just taken a group over tells
the progress up to the high watermark of its log (Kafka 4). As KIP-207 says of every new leader, that may be behind what
was confirmed before, until the other replicas have asked it: each 0.5 s (`replica.fetch.wait.max.ms`), or 1 s after an
error (`replica.fetch.backoff.ms`)."""


def result_in_doubt(
    batch: CommitBatch,
    written: Mapping[Partition, tuple[int, str]],
    supply: ReplaceableProducer,
    config: Mapping[str, object],
    stopping: StopRequest,
    sure_after_s: float = SURE_AFTER_S,
) -> CommitResult | None:
    """Return the result of a batch by the committed progress. None if it did not happen, or `stopping` is set.

    `written`: the offsets and metadata that the batch carried. `config`: of a consumer that reads the progress. Asks
    until Kafka answers: to commit again without its word could write every copy twice. The producer was replaced
    before, which ended what the old one had open. That the batch happened is believed at once, and that it did not
    after `sure_after_s` without another answer (`SURE_AFTER_S`).
    """
    credentials = supply.credentials
    pending, reader, denied_since = credentials.pending, None, inf
    topic_partitions = [TopicPartition(*source) for source in batch.commits]
    try:
        while not stopping.is_set():
            try:
                if reader is None:
                    pending, reader = credentials.pending, make_client(Consumer, credentials.newest(config))
                committed = raise_partition_errors(reader.committed(topic_partitions, timeout=ASK_LIMIT))
                result = _result(batch, written, committed)
                denied_since = min(denied_since, now := time.monotonic())
                if (result is not None and result.committed) or now >= denied_since + sure_after_s:
                    return result
                stopping.wait(AGAIN_AFTER)
            except KafkaException as failure:
                denied_since = inf  # the next answer may be another coordinator's
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


def _result(
    batch: CommitBatch, written: Mapping[Partition, tuple[int, str]], committed: list[TopicPartition]
) -> CommitResult | None:
    if is_written(committed, written):
        return CommitResult(batch, committed=True, done=batch.entries)
    if batch.padded:  # it says what Kafka had before, so only its length is an answer
        return None
    return result_from_progress(batch, _progress(committed))


def is_written(committed: list[TopicPartition], written: Mapping[Partition, tuple[int, str]]) -> bool:
    """Whether the committed offsets and metadata are those of the batch, to the letter."""
    return bool(committed) and all(
        (topic_partition.offset, topic_partition.metadata)
        == written.get(Partition(topic_partition.topic, topic_partition.partition))
        for topic_partition in committed
    )


def _progress(committed: list[TopicPartition]) -> dict[Partition, Progress]:
    sources = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition for topic_partition in committed
    }
    return {
        source: decode(source, topic_partition.offset, topic_partition.metadata)
        for source, topic_partition in sources.items()
    }


def result_from_progress(batch: CommitBatch, progress: Mapping[Partition, Progress]) -> CommitResult | None:
    """Return what the committed progress says of a batch; None if it covers none of its records."""
    if all(progress[source] == share.progress for source, share in batch.commits.items()):
        return CommitResult(batch, committed=True, done=batch.entries)
    done, again = list[SettledRecord](), list[SettledRecord]()
    for entry in batch.entries:
        source = entry.record.source
        sent = batch.commits[source]
        # Progress with notes is unlike any other, and says nothing of what was settled early.
        is_written = bool(sent.progress.unique) and progress[source] == sent.progress
        is_done = is_written or (not entry.is_early and _covers(progress[source], entry.record, sent))
        (done if is_done else again).append(entry)
    return CommitResult(batch, committed=False, done=tuple(done), again=tuple(again)) if done else None


def _covers(progress: Progress, record: Record, sent: PartitionCommit) -> bool:
    """Whether the progress covers the record. `sent`: its partition's part of the transaction in doubt.

    Progress that was made in a former log of the same name covers no record of this one: it names another log, or all
    of a level's new log is younger than what was read of the old one.
    """
    if is_recreated(progress.log, sent.progress.log):
        return False
    return progress.covers(record.offset) and (progress.last_at_ms is None or progress.last_at_ms >= record.timestamp)
