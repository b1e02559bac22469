"""Look up and create topics: the admin client behind plain values.

If no broker answers, that is one `BrokerError` with one sentence, within seconds. No topic is ever deleted or altered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from sidecar.errors import BrokerError, ConfigError
from sidecar.kafka.errors import ANSWER_SECONDS, code_of, sentence_of
from topics.specs import Source, TopicSpec

POLL_SECONDS = 0.02
"""Seconds between two polls while a request is out. A poll runs the client's callbacks, which say why a broker cannot
be reached."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic that the cluster has. `config` holds all its settings, including the broker's defaults.

    `id` is Kafka's own (KIP-516): a topic that was deleted and created again has another.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    id: str = ""


class Offset(StrEnum):
    """The kind of offset that is requested of a partition."""

    BEGIN = "begin"
    END = "end"
    NEWEST = "newest"
    """The offset of the record with the greatest timestamp."""


SPECS: Mapping[Offset, Callable[[], OffsetSpec]] = {
    Offset.BEGIN: OffsetSpec.earliest,
    Offset.END: OffsetSpec.latest,
    Offset.NEWEST: OffsetSpec.max_timestamp,
}


class ListedOffset(NamedTuple):
    """An offset, and the timestamp of its record (epoch ms); negative if there is none.

    The timestamp is known only if NEWEST or a time was requested.
    """

    offset: int
    timestamp: int


class CreateState(StrEnum):
    """The outcome of a request to create a topic."""

    CREATED = "created"
    EXISTS = "exists"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CreateResult:
    """The outcome for one topic; `error` is the broker's reason if it failed."""

    name: str
    state: CreateState
    error: str = ""


class Admin:
    """A connection to the cluster for admin requests. It lives as long as the futures that it returned."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Take the user's properties. Raises ConfigError if librdkafka refuses one of them."""
        self._servers = properties["bootstrap.servers"]
        self._reason = ""
        config: dict[str, Any] = {
            "client.id": "reconsume-admin",
            "log_level": 0,  # errors come back from the calls; librdkafka's own lines would mix with ours
            **properties,
            "error_cb": self._note,
        }
        try:
            self._client = AdminClient(config)
        except KafkaException as error:
            raise ConfigError([f"kafka: {sentence_of(error)}"]) from error

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" says less than the refused connection before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._reason = error.str()

    def find(self, names: Iterable[str]) -> dict[str, FoundTopic]:
        """Return those of the topics that exist. Raises BrokerError.

        Never creates a topic, whatever the broker's defaults are.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}
        futures = self._client.describe_topics(TopicCollection(wanted), request_timeout=ANSWER_SECONDS)
        shapes: dict[str, tuple[int, int, str]] = {}
        deadline = time.monotonic() + ANSWER_SECONDS
        for name, future in futures.items():
            try:
                described = self._wait(future, deadline)
            except KafkaException as error:
                if code_of(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._broker_error(f"cannot describe topic {name}", error) from error
            else:
                replicas = [len(partition.replicas) for partition in described.partitions]
                shapes[name] = (len(replicas), min(replicas, default=0), str(described.topic_id))
        configs = self._configs(list(shapes))
        return {
            name: FoundTopic(name, partitions, replication, configs[name], identity)
            for name, (partitions, replication, identity) in shapes.items()
        }

    def offsets(self, topics: Mapping[str, int], which: Offset | int) -> dict[tuple[str, int], ListedOffset]:
        """Return an offset of each partition of the topics, with read_committed. Raises BrokerError.

        `topics` gives the number of partitions of each topic. If `which` is a number, it is a time (epoch ms), and the
        first offset at that time or later is returned.
        """
        spec = SPECS[which]() if isinstance(which, Offset) else OffsetSpec.for_timestamp(which)
        asked = {TopicPartition(topic, number): spec for topic, count in topics.items() for number in range(count)}
        if not asked:
            return {}
        futures = self._client.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_SECONDS
        )
        deadline = time.monotonic() + ANSWER_SECONDS
        found: dict[tuple[str, int], ListedOffset] = {}
        for place, future in futures.items():
            try:
                listed = self._wait(future, deadline)
            except KafkaException as error:
                raise self._broker_error(f"cannot ask for the offsets of topic {place.topic}", error) from error
            found[place.topic, place.partition] = ListedOffset(listed.offset, listed.timestamp)
        return found

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        deadline = time.monotonic() + ANSWER_SECONDS
        found: dict[str, dict[str, str]] = {}
        for resource, future in self._client.describe_configs(resources, request_timeout=ANSWER_SECONDS).items():
            try:
                entries = self._wait(future, deadline)
            except KafkaException as error:
                raise self._broker_error(f"cannot read the settings of topic {resource.name}", error) from error
            found[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
        return found

    def create(self, specs: Sequence[TopicSpec], *, only_ask: bool = False) -> tuple[CreateResult, ...]:
        """Create the topics, each by itself. With `only_ask` find out whether the broker would create them.

        Never raises for a single topic. A topic that another client has created meanwhile is `exists`. The caller must
        check whether its settings are right.
        """
        if not specs:
            return ()
        wanted = [
            NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=spec.replication, config=spec.config)
            for spec in specs
        ]
        futures = self._client.create_topics(
            wanted, operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS, validate_only=only_ask
        )
        deadline = time.monotonic() + 2 * ANSWER_SECONDS
        return tuple(self._created(spec.name, futures[spec.name], deadline) for spec in specs)

    def _created(self, name: str, future: Future[Any], deadline: float) -> CreateResult:
        try:
            self._wait(future, deadline)
        except KafkaException as error:
            if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return CreateResult(name, CreateState.EXISTS)
            return CreateResult(name, CreateState.FAILED, sentence_of(error))
        return CreateResult(name, CreateState.CREATED)

    def _wait(self, future: Future[T], deadline: float) -> T:
        while not future.done() and time.monotonic() < deadline + 1:  # librdkafka itself gives up at the deadline
            self._client.poll(POLL_SECONDS)
        if not future.done():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return future.result()

    def _broker_error(self, what: str, error: KafkaException) -> BrokerError:
        if code_of(error) in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            reason = f" ({self._reason})" if self._reason else ""
            return BrokerError(f"no broker of {self._servers} answered within {ANSWER_SECONDS:.0f} s{reason}")
        return BrokerError(f"{what}: {sentence_of(error)}")


def source_of(found: FoundTopic) -> Source:
    """Return the properties of a main topic that the group's own topics follow."""
    return Source(
        name=found.name,
        partitions=found.partitions,
        replication=found.replication,
        max_message_bytes=int(found.config["max.message.bytes"]),
        min_insync_replicas=int(found.config["min.insync.replicas"]),
    )
