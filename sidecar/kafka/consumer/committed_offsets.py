"""Read the committed progress of partitions, also where Kafka holds some of the offsets back."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode, is_ours, misplaced, unread
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.printable import plural

COMMITTED_WITHIN = 2.0
"""Seconds. Committed offsets come within 5 ms, unless a crashed pod's transaction still holds some back. Then the
client itself goes on asking, and the other partitions of the assignment start meanwhile."""
ONE_WITHIN = 0.25
"""Seconds for one partition by itself, or for some whose answer is there already if it comes at all."""
EACH_WITHIN = 2.0
"""Seconds for all that are requested one by one. The other partitions of the assignment wait meanwhile, and the client
itself requests the offsets that are left out."""

_LOG = logging.getLogger("reconsume.assignment")


class PassedOver:
    """What to do with progress that does not count. Here nothing: other members log it for their own partitions."""

    def unread(self, source: Partition, why: str) -> None:
        """Take in that progress cannot be read: its offset still holds."""

    def misplaced(self, source: Partition, why: str) -> None:
        """Take in that progress was made for another position: its offset still holds."""

    def moved(self, source: Partition, offset: int) -> None:
        """Take in that another tool, or consumer, has committed the position."""


def committed(
    consumer: Consumer,
    partitions: Sequence[Partition],
    passed_over: PassedOver = PassedOver(),  # noqa: B008 - it has no state
    *,
    patient: bool = True,
) -> dict[Partition, Progress | None]:
    """Return the committed progress of each partition that Kafka answers for; None if the group has no offset.

    One partition whose offset is held back delays the request for all of them. Each is then requested by itself, and
    those that stay unknown are left out. An answer that carries an error says nothing about the offset. `passed_over`
    is told of progress that does not count. If not `patient`, all are requested once, for a short time, and all are
    left out if one is held back.
    """
    topic_partitions = [TopicPartition(*source) for source in partitions]
    answers, refusal = _all(consumer, topic_partitions, COMMITTED_WITHIN if patient else ONE_WITHIN)
    if refusal:
        answers = _each(consumer, topic_partitions) if patient else []
        _held_back(len(topic_partitions) - len(answers) if patient else 0, refusal)
    answered = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition
        for topic_partition in answers
        if topic_partition.error is None
    }
    errors = [topic_partition.error for topic_partition in answers if topic_partition.error is not None]
    _held_back(len(errors), errors[0] if errors else "")
    for source, topic_partition in answered.items():
        if topic_partition.offset < 0:
            continue
        if why := unread(topic_partition.metadata):
            passed_over.unread(source, why)
        elif why := misplaced(source, topic_partition.offset, topic_partition.metadata):
            passed_over.misplaced(source, why)
        elif not is_ours(topic_partition.metadata):
            passed_over.moved(source, topic_partition.offset)
    return {source: _progress(source, topic_partition) for source, topic_partition in answered.items()}


def _all(
    consumer: Consumer, topic_partitions: list[TopicPartition], within_s: float
) -> tuple[list[TopicPartition], str]:
    """Return the answers to one request, and why there are none."""
    if not topic_partitions:
        return [], ""
    try:
        return consumer.committed(topic_partitions, timeout=within_s), ""
    except KafkaException as failure:
        return [], str(failure)  # the next request comes after it (why: kafka/errors.py)


def _each(consumer: Consumer, topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    end, answers = time.monotonic() + EACH_WITHIN, list[TopicPartition]()
    for topic_partition in topic_partitions:
        if time.monotonic() < end:
            with suppress(KafkaException):  # `committed` says how many are left out
                answers += consumer.committed([topic_partition], timeout=ONE_WITHIN)
    return answers


def _held_back(count: int, why: object) -> None:
    if count:
        text = "Kafka does not return the committed offsets of %s yet: %s"
        _LOG.warning(text, plural(count, "partition"), why, extra={"event": "offset-held-back"})


def _progress(source: Partition, topic_partition: TopicPartition) -> Progress | None:
    return decode(source, topic_partition.offset, topic_partition.metadata) if topic_partition.offset >= 0 else None
