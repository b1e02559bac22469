"""A question to the cluster that is asked again while the cluster is only busy: its first group, a new leader.

Nothing is known of Kafka's clients here but their errors; who asks what is `kafka.py`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

AGAIN = 0.2
"""Seconds between two questions."""
PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Errors that pass by themselves; the client calls few of them retriable, and gives them back at once (2.16)."""

T = TypeVar("T")


def insisted(ask: Callable[[], T], within: float, again: float = AGAIN) -> T:
    """What `ask` gives, called again every `again` seconds for `within` seconds. Raises its last KafkaException."""
    deadline = time.monotonic() + within
    while True:
        try:
            return ask()
        except KafkaException as error:
            if time.monotonic() + again > deadline or not passes(error.args[0]):
                raise
        time.sleep(again)


def passes(error: KafkaError) -> bool:
    """Whether the same question may have an answer a moment later."""
    return error.code() in PASSING or bool(error.retriable())


def whole(found: list[TopicPartition]) -> list[TopicPartition]:
    """An answer about partitions, if it is one about each of them. Raises KafkaException with the first error."""
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found
