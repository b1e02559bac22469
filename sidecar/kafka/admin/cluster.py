"""The requests of the checks to Kafka: one admin client behind plain values, for many threads. It changes nothing.

Every answer comes within `ANSWER_SECONDS` or is a BrokerError. A request that this user may not make is a DeniedError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from sidecar.kafka.admin.descriptions import (
    ABSENT,
    ANSWER_SECONDS,
    DENIED,
    ConsumerGroup,
    Place,
    Topic,
    answer,
    answer_with_retry,
    busy,
    group_of,
    refused,
    topic_of,
)
from sidecar.kafka.client_config import reader_config
from sidecar.kafka.errors import code_of, raise_partition_errors, retry_transient


class Cluster:
    """A connection to the cluster for requests that only read."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = dict(kafka)
        self._client = AdminClient({"client.id": "reconsume-doctor", **kafka, "log_level": 0})

    def topics(self, names: Iterable[str]) -> tuple[dict[str, Topic], frozenset[str]]:
        """Return the topics that exist, and the names of those that this user may not see. Never creates one."""
        found: dict[str, Topic] = {}
        denied: set[str] = set()
        asked = TopicCollection(sorted(set(names)))
        futures = self._client.describe_topics(
            asked, include_authorized_operations=True, request_timeout=ANSWER_SECONDS
        )
        for name, future in futures.items():
            try:
                found[name] = topic_of(answer(future))
            except KafkaException as error:
                if code_of(error) in DENIED:
                    denied.add(name)
                elif code_of(error) not in ABSENT:
                    raise refused(f"topic {name}", error) from error
        return found, frozenset(denied)

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of those topics that exist and whose settings this user may see."""
        return self._configs([ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(names))])

    def broker_settings(self, broker: int) -> dict[str, str]:
        """Return the settings of a broker; empty if this user may not see them."""
        return self._configs([ConfigResource(ResourceType.BROKER, str(broker))]).get(str(broker), {})

    def _configs(self, resources: list[ConfigResource]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        if not resources:
            return found
        for resource, future in self._client.describe_configs(resources, request_timeout=ANSWER_SECONDS).items():
            try:
                found[resource.name] = {name: entry.value or "" for name, entry in answer(future).items()}
            except KafkaException as error:
                if code_of(error) not in DENIED | ABSENT:
                    raise refused(f"the settings of {resource.name}", error) from error
        return found

    def brokers(self) -> dict[int, str]:
        """Return the address that each broker gives to its clients. Raises BrokerError."""
        try:
            found = self._client.list_topics(timeout=ANSWER_SECONDS).brokers
        except KafkaException as error:
            raise refused("the list of brokers", error) from error
        return {number: f"{broker.host}:{broker.port}" for number, broker in found.items()}

    def offsets(
        self, places: Iterable[Place], which: OffsetSpec, *, committed: bool = True
    ) -> dict[Place, tuple[int, int]]:
        """Return for each partition an offset, and its record's timestamp if `which` requests it; −1 if there is none.

        If `committed` is False, records of open transactions count too.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask(some: Iterable[Place]) -> dict[Place, Future[Any]]:
            asked = {TopicPartition(*place): which for place in some}
            futures = self._client.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_SECONDS)
            return {(place.topic, place.partition): future for place, future in futures.items()}

        found: dict[Place, tuple[int, int]] = {}
        for place, future in (ask(wanted) if (wanted := list(places)) else {}).items():
            try:
                listed = answer_with_retry(future, lambda place=place: ask([place])[place])  # type: ignore[misc]
            except KafkaException as error:
                raise refused(f"the offsets of {place[0]}", error) from error
            found[place] = (listed.offset, listed.timestamp)
        return found

    def group_names(self) -> tuple[str, ...]:
        """Return the names of the consumer groups that this user may see."""
        try:
            listing = answer(self._client.list_consumer_groups(request_timeout=ANSWER_SECONDS))
        except KafkaException as error:
            raise refused("the list of groups", error) from error
        return tuple(sorted(group.group_id for group in listing.valid))

    def groups(self, names: Iterable[str]) -> dict[str, ConsumerGroup]:
        """Return the state of the groups, without those that this user may not see."""
        asked = sorted(set(names))
        found: dict[str, ConsumerGroup] = {}
        if not asked:
            return found

        def ask(name: str) -> Any:
            return self._client.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=ANSWER_SECONDS
            )[name]

        futures = self._client.describe_consumer_groups(
            asked, include_authorized_operations=True, request_timeout=ANSWER_SECONDS
        )
        for name, future in futures.items():
            try:
                found[name] = group_of(answer_with_retry(future, partial(ask, name)))
            except KafkaException as error:
                if code_of(error) in ABSENT:
                    found[name] = ConsumerGroup(False, (), frozenset())
                elif code_of(error) not in DENIED:
                    raise refused(f"group {name}", error) from error
        return found

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, int]:
        """Return the offsets of these partitions that a group has committed."""
        asked = [TopicPartition(*place) for place in places]
        if not asked:
            return {}
        # With read_committed an open transaction would delay the answer.
        config = {**reader_config(self.kafka, group, "reconsume-doctor"), "isolation.level": "read_uncommitted"}
        # A consumer that never joins. The admin client's own request ends the process (segmentation fault) if the
        # group's coordinator has just moved (librdkafka 2.16, a null group in rd_kafka_handle_OffsetFetch).
        consumer = Consumer({**config, "log_level": 0})
        try:
            ask = partial(consumer.committed, asked, timeout=ANSWER_SECONDS)
            found = retry_transient(lambda: raise_partition_errors(ask()), ANSWER_SECONDS, busy)
        except KafkaException as error:
            raise refused(f"the progress of group {group}", error) from error
        finally:
            consumer.close()
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}
