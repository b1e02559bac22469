"""Calls of librdkafka's admin client, in a process of their own: while nodes come and go, one of them may abort it.

An assertion of the client fails when a broker goes away under an admin request that waits for it (librdkafka#4605, seen
on 2.16). A question that ends so is asked again, in a new process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    NewPartitions,
)

T = TypeVar("T")
ANSWER = 10.0
"""Seconds that one question may take."""
BEGIN = 10.0
"""Seconds more for a process and a client that have to start."""


class UnansweredError(Exception):
    """Kafka refuses, or does not answer."""


class Away:
    """Makes a process for each question, and ends it: a client that is stuck, or has aborted, is nobody's any more."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.soak.admin", "tests.support.kafka.group_topics"])

    def ask(self, question: Callable[..., T], *words: object, seconds: float = ANSWER) -> T:
        """Call a function of some module there, with the bootstrap servers before `words`; it takes so long at most.

        Raises UnansweredError with Kafka's refusal, and TimeoutError if there is no answer, or the process has died.
        """
        here, there = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=_serve, args=(there, question, self._bootstrap, *words), daemon=True)
        process.start()
        there.close()
        try:
            if not here.poll(seconds + BEGIN):
                raise TimeoutError(f"{question.__name__} has no answer")
            answer, refusal = here.recv()
        except EOFError:
            raise TimeoutError(f"the process that asked {question.__name__} has died") from None
        finally:
            process.kill()
            process.join()
            here.close()
        if refusal:
            raise UnansweredError(refusal)
        return answer  # type: ignore[no-any-return]


# --- in that process ------------------------------------------------------------------------------------------------


def _serve(there: Connection, question: Callable[..., Any], *words: object) -> None:
    """Send the answer, or the words of a refusal: the client's exceptions pass no border of processes."""
    try:
        there.send((question(*words), ""))
    except (KafkaException, AssertionError, TimeoutError) as refusal:
        there.send((None, str(refusal) or type(refusal).__name__))


@cache  # who lets go of it ends what it asks
def _client(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})


def members(bootstrap: str, group: str) -> tuple[str, ...]:
    """The client ids of the members of a consumer group."""
    asked = _client(bootstrap).describe_consumer_groups([group], request_timeout=ANSWER)
    return tuple(str(member.client_id) for member in asked[group].result(ANSWER).members)


def topic_id(bootstrap: str, topic: str) -> str:
    """Kafka's id of the topic, which one made anew does not keep."""
    asked = _client(bootstrap).describe_topics(TopicCollection([topic]), request_timeout=ANSWER)
    return str(asked[topic].result(ANSWER).topic_id)


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Have the topic have so many partitions."""
    asked = _client(bootstrap).create_partitions([NewPartitions(topic, partitions)], request_timeout=ANSWER)
    asked[topic].result(ANSWER)


def cut(bootstrap: str, topic: str, partition: int, before: int) -> int:
    """Cut the log below an offset; its first offset now, by the broker's word."""
    place = TopicPartition(topic, partition, before)
    asked = _client(bootstrap).delete_records([place], request_timeout=ANSWER)
    return int(asked[place].result(ANSWER).low_watermark)


def delete(bootstrap: str, topic: str) -> None:
    """Delete a topic."""
    _client(bootstrap).delete_topics([topic], request_timeout=ANSWER)[topic].result(ANSWER)
