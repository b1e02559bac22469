"""What the brokers say, asked by the Kafka client of Spark's connector: no other need be there on a cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark.java import classes
from spark.job.lost_events import Place

KAFKA = "kafka."
ANSWER_SECONDS = 5
"""How long brokers may take: the loop that looks after the queries, and after a wish to stop, waits for it."""
FRESH_SECONDS = 1.0
"""How long an answer is good for: several queries ask for the same."""
LISTED = re.compile(r"\(name=([^,]+), topicId=([^,]+), internal=")
OFFSET = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+),")


class UnansweredError(RuntimeError):
    """The brokers do not answer, or not in the form that is known."""


class Cluster:
    """One client for the whole life of the job. Raises UnansweredError; what Py4J raises is raised.

    `kafka` holds Spark's options for reaching Kafka.
    """

    def __init__(
        self, spark: SparkSession, kafka: Mapping[str, str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._java, self._kafka, self._now = classes(spark), kafka, now
        self._client: Any = None
        self._topics: dict[str, str] = {}
        self._asked_at: float | None = None
        self._failure: Exception | None = None
        self._places: frozenset[Place] = frozenset()
        self._questions: Any = self._java.java.util.HashMap()

    def topics(self) -> Mapping[str, str]:
        """The id of each topic that Kafka shows us, by name; at most FRESH_SECONDS old, as is what is raised."""
        if self._asked_at is None or self._now() - self._asked_at > FRESH_SECONDS:
            self._ask()
        if self._failure is not None:
            raise self._failure
        return self._topics

    def _ask(self) -> None:
        try:
            self._topics, self._failure = listed(self._answer(self._admin.listTopics().listings())), None
        except Exception as failure:  # noqa: BLE001 - kept, and raised for all who ask
            self._failure = failure
        self._asked_at = self._now()

    def earliest(self, places: Collection[Place]) -> Mapping[Place, int]:
        """The first offset that each partition has."""
        if places != self._places:
            admin, asked = self._java.org.apache.kafka.clients.admin, self._java.java.util.HashMap()
            for topic, number in places:
                asked.put(
                    self._java.org.apache.kafka.common.TopicPartition(topic, int(number)), admin.OffsetSpec.earliest()
                )
            self._places, self._questions = frozenset(places), asked
        return begins(self._answer(self._admin.listOffsets(self._questions).all()))

    def commit(self, groups: Mapping[str, Mapping[Place, int]]) -> None:
        """Commit places as the offsets of consumer groups that have no members."""
        # All are asked before the first is waited for.
        for future in [self._altered(group, places) for group, places in groups.items()]:
            self._wait(future)

    def _altered(self, group: str, places: Mapping[Place, int]) -> Any:
        at, told = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata, self._java.java.util.HashMap()
        for (topic, number), offset in places.items():
            told.put(self._java.org.apache.kafka.common.TopicPartition(topic, int(number)), at(offset))
        return self._admin.alterConsumerGroupOffsets(group, told).all()

    @property
    def _admin(self) -> Any:
        """The client, made when it is first asked: a name that cannot be resolved now may be later."""
        if self._client is None:
            properties = self._java.java.util.Properties()
            for name, value in self._kafka.items():
                properties.setProperty(name.removeprefix(KAFKA), value)
            with saying_why():
                self._client = self._java.org.apache.kafka.clients.admin.Admin.create(properties)
        return self._client

    def _answer(self, future: Any) -> str:
        """An answer as text: one call to Java, where one for each thing in it would be thousands."""
        return str(self._wait(future).toString())

    def _wait(self, future: Any) -> Any:
        with saying_why():
            return future.get(ANSWER_SECONDS, self._java.java.util.concurrent.TimeUnit.SECONDS)


@contextmanager
def saying_why() -> Iterator[None]:
    """Turn what Java raises into an UnansweredError of one sentence: Py4J's own begins with a number."""
    try:
        yield
    except Py4JJavaError as error:
        raise UnansweredError(str(error.java_exception.toString())) from error


def listed(text: str) -> dict[str, str]:
    """Topics and their ids, from a list of the client's TopicListing as text. Raises UnansweredError."""
    found = dict(LISTED.findall(text))
    if len(found) != text.count("(name="):
        raise UnansweredError(f"the client lists topics in an unknown form: {text[:200]}")
    return found


def begins(text: str) -> dict[Place, int]:
    """Offsets by partition, from the client's answer as text. Raises UnansweredError."""
    found = {(topic, number): int(offset) for topic, number, offset in OFFSET.findall(text)}
    if len(found) != text.count("=ListOffsetsResultInfo"):
        raise UnansweredError(f"the client tells offsets in an unknown form: {text[:200]}")
    return found
