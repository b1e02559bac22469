"""Read the committed progress of partitions, also where Kafka holds some of the offsets back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.core.progress import Progress
from sidecar.core.progress_codec import decode, unread
from sidecar.core.record import Partition

COMMITTED_WITHIN = 2.0
"""Seconds. Committed offsets come within 5 ms, unless a crashed pod's transaction still holds some back. Then the
client itself goes on asking, and the other partitions of the assignment start meanwhile."""
ONE_WITHIN = 0.25
"""Seconds for one partition by itself, or for some whose answer is there already if it comes at all."""
EACH_WITHIN = 2.0
"""Seconds for all that are requested one by one. The other partitions of the assignment wait meanwhile, and the client
itself requests the offsets that are left out."""

_LOG = logging.getLogger("reconsume.assignment")


def _ignore(source: Partition, why: str) -> None:
    """Log nothing: these are partitions of other members, which log it themselves."""


def committed(
    consumer: Consumer,
    partitions: Sequence[Partition],
    passed_over: Callable[[Partition, str], None] = _ignore,
    *,
    patient: bool = True,
) -> dict[Partition, Progress | None]:
    """Return the committed progress of each partition that Kafka answers for; None if the group has no offset.

    One partition whose offset is held back delays the request for all of them. Each is then requested by itself, and
    those that stay unknown are left out. An answer that carries an error says nothing about the offset. `passed_over`
    is called for progress that cannot be read: its offset still holds. If not `patient`, all are requested once, for a
    short time, and all are left out if one is held back.
    """
    places = [TopicPartition(*source) for source in partitions]
    try:
        answers = consumer.committed(places, timeout=COMMITTED_WITHIN if patient else ONE_WITHIN) if places else []
    except KafkaException:
        answers = _each(consumer, places) if patient else []
    found = {Partition(place.topic, place.partition): place for place in answers if _answered(place)}
    for source, place in found.items():
        if place.offset >= 0 and (why := unread(place.metadata)):
            passed_over(source, why)
    return {source: _progress(place) for source, place in found.items()}


def _each(consumer: Consumer, places: Sequence[TopicPartition]) -> list[TopicPartition]:
    end, answers = time.monotonic() + EACH_WITHIN, list[TopicPartition]()
    for place in places:
        if time.monotonic() < end:
            answers += _one(consumer, place)
    return answers


def _one(consumer: Consumer, place: TopicPartition) -> list[TopicPartition]:
    try:
        return consumer.committed([place], timeout=ONE_WITHIN)
    except KafkaException as refusal:
        _held_back(place, refusal)
        return []


def _answered(place: TopicPartition) -> bool:
    if place.error is not None:
        _held_back(place, place.error)
    return place.error is None


def _held_back(place: TopicPartition, why: object) -> None:
    text, extra = "%s[%d]: Kafka does not return the committed offset yet: %s", {"event": "offset-held-back"}
    _LOG.warning(text, place.topic, place.partition, why, extra=extra)


def _progress(place: TopicPartition) -> Progress | None:
    return decode(place.offset, place.metadata) if place.offset >= 0 else None
