"""Retry a request while it fails with a transient error: the cluster is busy with its first group or a new leader.

This module knows only the errors of the Kafka clients. Callers decide which request is made and which errors are
transient.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

AGAIN = 0.2
"""Seconds between two tries."""

T = TypeVar("T")


def retry_transient(
    ask: Callable[[], T], within: float, passes: Callable[[KafkaError], bool], again: float = AGAIN
) -> T:
    """Return the result of `ask`; call it again while its error is transient.

    `ask` is called every `again` seconds, for `within` seconds, while `passes` is true for its error. Raises the last
    KafkaException if the time is over or the error is not transient.
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
    """Return `found` if none of its partitions has an error.

    Raises KafkaException with the first error.
    """
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


ANSWER_SECONDS = 8.0
"""Seconds that a request may take. A user who typed a wrong address must know it within 10 s of pressing return."""


def code_of(error: KafkaException) -> int:
    """Return the code of the error."""
    code: int = error.args[0].code()
    return code


def sentence_of(error: KafkaException) -> str:
    """Return the text of the broker's or the client's error, on one line."""
    return " ".join(str(error.args[0].str()).split())
