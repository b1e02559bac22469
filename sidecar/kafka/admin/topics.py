"""Create, grow and delete topics, and delete records and consumer groups: all such changes that Reconsume makes.

Topics and consumer groups are deleted with the whole group alone (`group delete`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic  # type: ignore[attr-defined]  # re-exported without saying so

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.connection import DENIED, Connection
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.specs import TopicSpec

LISTED_WITHIN = 30.0
"""Seconds until a new topic must be listed. On an idle cluster it takes milliseconds."""
STEP_S = 0.05


class CreateState(StrEnum):
    """The outcome of a request to create a topic, or to give it partitions."""

    CREATED = "created"
    GROWN = "grown"
    EXISTS = "exists"
    FAILED = "failed"


class CreateResult(NamedTuple):
    """The outcome for one topic; `error` is the broker's reason if it failed."""

    name: str
    state: CreateState
    error: str = ""


class TopicAdmin:
    """The requests that change topics. A refusal is part of the result, never an exception."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, specs: Sequence[TopicSpec], *, only_ask: bool = False) -> tuple[CreateResult, ...]:
        """Create the topics, each by itself. With `only_ask` find out whether the broker would create them.

        A topic that another client has created meanwhile is `exists`. The caller must check whether its settings are
        right. The broker that is asked here lists the created topics then: a controller creates a topic before the
        brokers know (KRaft). Raises BrokerError if they are not listed in `LISTED_WITHIN` seconds.
        """
        if not specs:
            return ()
        wanted = [
            NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=spec.replication, config=spec.config)
            for spec in specs
        ]
        futures = self._connection.client.create_topics(
            wanted, operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS, validate_only=only_ask
        )
        results = self._results(futures, CreateState.CREATED)
        if not only_ask:
            self._await_listed([result.name for result in results if result.state is CreateState.CREATED])
        return results

    def grow(self, specs: Sequence[TopicSpec], *, only_ask: bool = False) -> tuple[CreateResult, ...]:
        """Give topics the partitions that they lack. With `only_ask` find out whether the broker would."""
        if not specs:
            return ()
        futures = self._connection.client.create_partitions(
            [NewPartitions(spec.name, spec.partitions) for spec in specs],
            operation_timeout=ANSWER_SECONDS,
            request_timeout=ANSWER_SECONDS,
            validate_only=only_ask,
        )
        return self._results(futures, CreateState.GROWN)

    def _results(self, futures: Mapping[str, Future[Any]], done: CreateState) -> tuple[CreateResult, ...]:
        results = []
        for name, future in futures.items():
            try:
                self._connection.answer(future, 2 * ANSWER_SECONDS)
            except KafkaException as error:
                if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                    results.append(CreateResult(name, CreateState.EXISTS))
                else:
                    results.append(CreateResult(name, CreateState.FAILED, sentence_of(error)))
            else:
                results.append(CreateResult(name, done))
        return tuple(results)

    def delete(self, names: Sequence[str]) -> dict[str, str]:
        """Delete topics. Return the broker's reason for each that it refuses; empty for one that is gone."""
        if not names:
            return {}
        futures = self._connection.client.delete_topics(
            list(names), operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS
        )
        return self._refusals(futures, KafkaError.UNKNOWN_TOPIC_OR_PART)

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        """Delete consumer groups. Kafka refuses one that has members. Return the same as `delete`."""
        if not names:
            return {}
        futures = self._connection.client.delete_consumer_groups(list(names), request_timeout=ANSWER_SECONDS)
        return self._refusals(futures, KafkaError.GROUP_ID_NOT_FOUND)

    def _refusals(self, futures: Mapping[str, Future[Any]], gone: int) -> dict[str, str]:
        refused = dict.fromkeys(futures, "")
        for name, future in futures.items():
            try:
                self._connection.answer(future, 2 * ANSWER_SECONDS)
            except KafkaException as error:
                if code_of(error) != gone:
                    refused[name] = sentence_of(error)
        return refused

    def _await_listed(self, created: Collection[str]) -> None:
        until = time.monotonic() + LISTED_WITHIN
        while created := self._unlisted(created):
            if time.monotonic() > until:
                raise BrokerError(f"created, but not listed within {LISTED_WITHIN:.0f} s: {', '.join(created)}")
            time.sleep(STEP_S)

    def _unlisted(self, names: Collection[str]) -> list[str]:
        def send(some: Collection[str]) -> Mapping[str, Future[Any]]:
            return self._connection.client.describe_topics(TopicCollection(list(some)), request_timeout=ANSWER_SECONDS)

        unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
        _, refused = self._connection.answers("topic {}".format, names, send, DENIED | {unknown})
        return [name for name, code in refused.items() if code == unknown]

    def delete_records(self, before: Mapping[PartitionName, int]) -> dict[PartitionName, str]:
        """Delete all records below an offset of each partition. Return the broker's reasons where it refuses."""
        topic_partitions = [TopicPartition(*partition, offset) for partition, offset in before.items()]
        refused: dict[PartitionName, str] = {}
        futures = self._connection.client.delete_records(topic_partitions, request_timeout=2 * ANSWER_SECONDS)
        for partition, future in futures.items():
            try:
                self._connection.answer(future, 2 * ANSWER_SECONDS)
            except KafkaException as error:
                refused[partition.topic, partition.partition] = sentence_of(error)
        return refused
