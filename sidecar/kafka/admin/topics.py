"""What the cluster has and how topics are created: the admin client behind plain values.

Only here are admin requests made. A broker that does not answer is one `BrokerError` with one sentence, in seconds.
Nothing is ever deleted or altered.
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
"""How often the client's callbacks are served while a request is out; they say why a broker cannot be reached."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the cluster has it; `config` holds all its settings, the broker's defaults included.

    `id` is Kafka's own (KIP-516): a topic that was deleted and made anew has another.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    id: str = ""


class Offset(StrEnum):
    """Which offset of a partition is asked for."""

    BEGIN = "begin"
    END = "end"
    NEWEST = "newest"
    """That of the record with the greatest timestamp."""


SPECS: Mapping[Offset, Callable[[], OffsetSpec]] = {
    Offset.BEGIN: OffsetSpec.earliest,
    Offset.END: OffsetSpec.latest,
    Offset.NEWEST: OffsetSpec.max_timestamp,
}


class ListedOffset(NamedTuple):
    """An offset, and for NEWEST and a time the timestamp of its record (epoch ms); negative where there is none."""

    offset: int
    timestamp: int


class CreateState(StrEnum):
    """What came of the wish to create a topic."""

    CREATED = "created"
    EXISTS = "exists"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CreateResult:
    """What came of one topic; `error` is the broker's reason where it failed."""

    name: str
    state: CreateState
    error: str = ""


class Admin:
    """A connection to the cluster for admin requests; it lives as long as the futures that it gave out."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Take the user's properties. ConfigError when librdkafka refuses one of them."""
        self._servers = properties["bootstrap.servers"]
        self._reason = ""
        config: dict[str, Any] = {
            "client.id": "reconsume-admin",
            "log_level": 0,  # what matters comes back as an error; librdkafka's own lines would mix with ours
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
        """Those of the topics that exist. Never creates one, whatever the broker's defaults. Raises BrokerError."""
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
        """An offset of each partition of the topics, which have so many; read_committed. Raises BrokerError.

        A number is a time (epoch ms): the first offset of then or later.
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
        """Create the topics, each by itself, or with `only_ask` learn whether the broker would. Never raises for one.

        A topic that somebody else created meanwhile is `exists`; whether it is as it must be is the caller's to see.
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
        while not future.done() and time.monotonic() < deadline + 1:  # librdkafka gives up by itself at the deadline
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
    """A main topic, as the group's own topics follow it."""
    return Source(
        name=found.name,
        partitions=found.partitions,
        replication=found.replication,
        max_message_bytes=int(found.config["max.message.bytes"]),
        min_insync_replicas=int(found.config["min.insync.replicas"]),
    )
