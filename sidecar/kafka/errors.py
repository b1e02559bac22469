"""Errors of the Kafka client that pass on their own, by cause, and requests that are repeated, or cut short, for them.

The client marks few errors as retriable, and returns them at once (2.16). Callers say which causes count for a call.

A request that fails while another error is being handled keeps that error forever, with all frames that it passed and
what is in them: clients with their threads, and records (confluent-kafka 2.16: each error of a request leaks its
KafkaError, which has the handled error as its context). So no request is made inside an `except`, nor below one: the
handler notes what it needs, and the request follows it.

Topics are asked for by name, one by one (`named_topics`): a list of all topics has megabytes in a large cluster, and
takes seconds (contract 13.6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]  # exported without saying so

from reconsume.topics.masking import text_without_secrets

COORDINATOR = frozenset(
    {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
)
"""The cluster's first group, or a group that moves to another broker."""
LEADER = frozenset(
    {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE}
)
"""A topic that was created a moment ago, or a leader that moves, or that has just become it."""
NEW_TOPIC = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
"""A topic that the client has not heard of yet."""
OPEN_TRANSACTION = frozenset({KafkaError.UNSTABLE_OFFSET_COMMIT})
"""Offsets that an open transaction may still change (KIP-447)."""
CONNECTION = frozenset({KafkaError._TRANSPORT, KafkaError._WAIT_COORD})
"""A broker that has just started, or gone."""
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


def passing(*causes: frozenset[int]) -> Callable[[KafkaError], bool]:
    """Return whether an error has one of these causes, as a function."""
    codes = frozenset[int]().union(*causes)
    return lambda error: error.code() in codes


def raise_partition_errors(answers: list[TopicPartition]) -> list[TopicPartition]:
    """Return `answers` if none of its partitions has an error.

    Raises KafkaException with the first error.
    """
    for topic_partition in answers:
        if topic_partition.error is not None:
            raise KafkaException(topic_partition.error)
    return answers


class Committed(Protocol):
    """A client that can fetch the committed offsets of a group."""

    def committed(self, topic_partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Return the committed offsets of these partitions. Raises KafkaException."""


def committed_of(
    client: Committed,
    topic_partitions: list[TopicPartition],
    within: float,
    passes: Callable[[KafkaError], bool],
    again: float = AGAIN,
    each: float = inf,
) -> list[TopicPartition]:
    """Return a group's committed offsets. Retry while its coordinator is not available yet. Raises KafkaException.

    `each`: seconds that one request may take.
    """
    timeout = min(each, within)
    return retry_transient(
        lambda: raise_partition_errors(client.committed(topic_partitions, timeout=timeout)), within, passes, again
    )


ANSWER_SECONDS = 8.0
"""Seconds that a request may take. A user who typed a wrong address must know it within 10 s of pressing return."""
FIRST_ANSWER_SECONDS = 10.0
"""Seconds for a request about a group or a transaction. The first makes a new cluster create the topic for it, which
takes seconds."""


def code_of(error: KafkaException) -> int:
    """Return the code of the error."""
    code: int = error.args[0].code()
    return code


def sentence_of(error: KafkaException | KafkaError) -> str:
    """Return the text of the broker's or the client's error, on one line."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    return text_without_secrets(" ".join(str(cause.str()).split()))


ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Answers by which a topic is not there for this user."""


class Lists(Protocol):
    """A client that tells about topics."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Return the metadata of one topic. Raises KafkaException."""


class NamedTopics(NamedTuple):
    """The topics that exist, and the names of those that certainly do not. Of all others nothing is known.

    `denied`: those of the absent ones that this user may not see, so that they may exist for others.
    """

    described: dict[str, TopicMetadata]
    absent: frozenset[str]
    denied: frozenset[str] = frozenset()


def named_topics(client: Lists, names: Iterable[str], within: float, whole: float = inf) -> NamedTopics:
    """Return what Kafka says of these topics. A client with `allow.auto.create.topics: false` creates none by that.

    They are asked for in their order. `within`: seconds for one answer. Where none comes the rest is not asked, and
    after `whole` seconds neither: the caller asks again, first for what is not known yet. Raises nothing.
    """
    described, refused, until = dict[str, TopicMetadata](), dict[str, int](), time.monotonic() + whole
    for name in dict.fromkeys(names):
        if time.monotonic() >= until:
            break
        try:
            topic = client.list_topics(name, timeout=within).topics[name]
        except KafkaException:
            break
        if topic.error is None:
            described[name] = topic
        elif topic.error.code() in ABSENT:
            refused[name] = topic.error.code()
    denied = frozenset(name for name, code in refused.items() if code == KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return NamedTopics(described, frozenset(refused), denied)
