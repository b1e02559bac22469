"""A question to the cluster that is asked again while the cluster is only busy: its first group, a new leader.

Nothing is known of Kafka's clients here but their errors; who asks what, and which errors pass, is the callers'.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

AGAIN = 0.2
"""Seconds between two questions."""

T = TypeVar("T")


def retry_transient(
    ask: Callable[[], T], within: float, passes: Callable[[KafkaError], bool], again: float = AGAIN
) -> T:
    """What `ask` gives, called again every `again` seconds while its error `passes`, for `within` seconds.

    Raises the last KafkaException.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return ask()
        except KafkaException as error:
            if time.monotonic() > deadline or not passes(error.args[0]):
                raise
        time.sleep(again)


def raise_partition_errors(found: list[TopicPartition]) -> list[TopicPartition]:
    """An answer about partitions, if it is one about each of them. Raises KafkaException with the first error."""
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


ANSWER_SECONDS = 8.0
"""How long a request may take. A user who typed a wrong address must know it within 10 s of pressing return."""


def code_of(error: KafkaException) -> int:
    """The error's code."""
    code: int = error.args[0].code()
    return code


def sentence_of(error: KafkaException) -> str:
    """What the broker or the client said, on one line."""
    return " ".join(str(error.args[0].str()).split())
