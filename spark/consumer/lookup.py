"""What the brokers say of the level topics: that they are there and fit to be read by time, and where offsets lie.

Three questions a batch, each one request to each broker, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from spark.consumer.offsets import Place

SECONDS = 30.0
"""How long the brokers may take to answer."""
STAMP = "message.timestamp.type"
APPEND = "LogAppendTime"


class LevelTopicError(RuntimeError):
    """A level topic is missing, or cannot be read by time; an operator must act."""


def described_by(answer: Future[TopicDescription]) -> TopicDescription | None:
    """What is said of a topic; None where there is none. Raises KafkaException."""
    try:
        return answer.result(SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


class Lookup:
    """Asks about the level topics in `levels` (topic to delay in ms). Raises KafkaException when brokers do not answer.

    `client` holds librdkafka's settings.
    """

    def __init__(self, client: Mapping[str, str], levels: Mapping[str, int]) -> None:
        self._admin = AdminClient(dict(client))
        self._levels = levels

    def topics(self) -> tuple[list[Place], dict[str, str]]:
        """Every partition of the level topics, sorted, and the topics' ids.

        Raises LevelTopicError naming the topics that are missing.
        """
        asked = self._admin.describe_topics(TopicCollection(list(self._levels)), request_timeout=SECONDS)
        found = {name: described for name, answer in asked.items() if (described := described_by(answer)) is not None}
        if missing := sorted(self._levels.keys() - found.keys()):
            raise LevelTopicError(f"missing level topics: {', '.join(missing)}; `reconsume topics apply` makes them")
        places = sorted((name, part.id) for name, topic in found.items() for part in topic.partitions)
        return places, {name: str(topic.topic_id) for name, topic in found.items()}

    def check_stamps(self) -> None:
        """LevelTopicError unless each topic is stamped by its broker: only then what is due is a prefix.

        Needs the right to describe the topics' settings.
        """
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in self._levels]
        answers = self._admin.describe_configs(asked, request_timeout=SECONDS)
        stamps = {resource.name: answer.result()[STAMP].value for resource, answer in answers.items()}
        if wrong := sorted(name for name, stamp in stamps.items() if stamp != APPEND):
            raise LevelTopicError(
                f"{STAMP} must be {APPEND}, and it is not for {', '.join(wrong)}: "
                "what is due could not be told from what is not; `reconsume topics apply` mends it"
            )

    def lows(self, places: Sequence[Place]) -> dict[Place, int]:
        """The first offset of each partition."""
        return self._offsets(places, lambda _: OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """The last stable offset of each partition: nothing below it is in an open transaction."""
        return self._offsets(places, lambda _: OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def cuts(self, places: Sequence[Place], now: int) -> dict[Place, int]:
        """The first offset of each partition whose delay is not over at `now` (epoch ms); −1 where there is none."""
        return self._offsets(places, lambda place: OffsetSpec.for_timestamp(now - self._levels[place[0]]))

    def _offsets(self, places: Iterable[Place], spec: Callable[[Place], OffsetSpec]) -> dict[Place, int]:
        asked = {TopicPartition(*place): spec(place) for place in places}
        if not asked:
            return {}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=SECONDS
        )
        return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
