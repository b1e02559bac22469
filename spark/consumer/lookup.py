"""Query the brokers about the level topics: whether they exist and carry append times, and where their offsets are.

A batch asks three questions. Each is one request to each broker, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from reconsume.spark.consumer.offsets import PartitionName
from reconsume.topics.client_rules import checked_client
from reconsume.topics.names import canonical_delay

SECONDS = 30.0
"""Seconds that the brokers may take to answer."""
STAMP = "message.timestamp.type"
APPEND = "LogAppendTime"


class LevelTopicError(RuntimeError):
    """A level topic is missing, or cannot be read by time. An operator must correct it."""


def described_by(answer: Future[TopicDescription]) -> TopicDescription | None:
    """Return the description of a topic; None if it does not exist. Raises KafkaException if the request failed."""
    try:
        return answer.result(SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


class Lookup:
    """Read-only requests about the level topics in `levels` (topic to delay in ms).

    `client` holds librdkafka's settings. All methods raise KafkaException if the brokers do not answer.
    """

    def __init__(self, client: Mapping[str, str], levels: Mapping[str, int]) -> None:
        self._admin = checked_client(AdminClient, dict(client))
        self._required = frozenset(levels)
        self._levels = dict(levels)

    def other_levels(self, prefixes: Sequence[str]) -> dict[str, int]:
        """Return the topics that exist and are levels by their names, but are not known yet, with their delays in ms.

        The name of a level is one of the prefixes and a delay.
        """
        names = self._admin.list_topics(timeout=SECONDS).topics.keys() - self._levels.keys()
        delays = ((name, canonical_delay(name, prefix)) for name in sorted(names) for prefix in prefixes)
        return {name: delay for name, delay in delays if delay is not None}

    def add(self, levels: Mapping[str, int]) -> None:
        """Look at these level topics too. They may be deleted at any time."""
        self._levels |= levels

    def topics(self) -> tuple[list[PartitionName], dict[str, str]]:
        """Return every partition of the level topics, sorted, and the topics' ids by name.

        Raises LevelTopicError, which names the topics, if topics are missing that the job began with.
        """
        answers = self._admin.describe_topics(TopicCollection(list(self._levels)), request_timeout=SECONDS)
        found = {name: described for name, answer in answers.items() if (described := described_by(answer)) is not None}
        if missing := sorted(self._required - found.keys()):
            raise LevelTopicError(f"missing level topics: {', '.join(missing)}; `reconsume topics apply` makes them")
        partitions = sorted(
            (name, described_partition.id) for name, topic in found.items() for described_partition in topic.partitions
        )
        return partitions, {name: str(topic.topic_id) for name, topic in found.items()}

    def check_stamps(self, topics: Collection[str]) -> None:
        """Raise LevelTopicError if one of these level topics does not carry append times.

        Only with append times are the due records a prefix of a partition. The client needs the right to describe the
        topics' configuration.
        """
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        answers = self._admin.describe_configs(resources, request_timeout=SECONDS)
        stamps = {resource.name: answer.result()[STAMP].value for resource, answer in answers.items()}
        if wrong := sorted(name for name, stamp in stamps.items() if stamp != APPEND):
            raise LevelTopicError(
                f"{STAMP} must be {APPEND}, and it is not for {', '.join(wrong)}: "
                "what is due could not be told from what is not; `reconsume topics apply` mends it"
            )

    def lows(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, int]:
        """Return the first offset of each partition."""
        return self._offsets(partitions, lambda _: OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, int]:
        """Return the last stable offset of each partition. Below it no transaction is open."""
        return self._offsets(partitions, lambda _: OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def cuts(self, partitions: Sequence[PartitionName], now: int) -> dict[PartitionName, int]:
        """Return the first offset of each partition whose delay is not over at `now` (epoch ms), or NO_LATER (−1)."""
        return self._offsets(partitions, lambda partition: OffsetSpec.for_timestamp(now - self._levels[partition[0]]))

    def _offsets(
        self, partitions: Iterable[PartitionName], spec: Callable[[PartitionName], OffsetSpec]
    ) -> dict[PartitionName, int]:
        specs = {TopicPartition(*partition): spec(partition) for partition in partitions}
        if not specs:
            return {}
        answers = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=SECONDS
        )
        return {(partition.topic, partition.partition): answer.result().offset for partition, answer in answers.items()}
