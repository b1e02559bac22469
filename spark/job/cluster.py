"""Ask the brokers through the Kafka client of Spark's connector: a cluster need not have any other client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark.java import classes
from spark.job.lost_events import PartitionName

KAFKA = "kafka."
"""How the names of Spark's options for connecting to Kafka begin."""
ANSWER_SECONDS = 5
"""Seconds that the brokers may take to answer. Meanwhile the loop waits that watches the queries and the stop
signal."""
FRESH_SECONDS = 1.0
"""Seconds for which an answer is used again, because several queries ask the same question."""
LISTED = re.compile(r"\(name=([^,]+), topicId=([^,]+), internal=")
OFFSET = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+),")


class UnansweredError(RuntimeError):
    """The brokers do not answer, or the answer has an unknown form."""


class Cluster:
    """A Kafka admin client that the whole job uses, from start to end.

    `kafka` holds Spark's options for connecting to Kafka. Methods raise UnansweredError; errors of Py4J are raised as
    they are.
    """

    def __init__(
        self, spark: SparkSession, kafka: Mapping[str, str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._java, self._kafka, self._now = classes(spark), kafka, now
        self._client: Any = None
        self._topics: dict[str, str] = {}
        self._asked_at: float | None = None
        self._failure: Exception | None = None
        self._asked_of: frozenset[PartitionName] = frozenset()
        self._questions: Any = self._java.java.util.HashMap()

    def topics(self) -> Mapping[str, str]:
        """Return the id of each topic that Kafka shows to this client, by name.

        The answer, or error, is at most FRESH_SECONDS old.
        """
        if self._asked_at is None or self._now() - self._asked_at > FRESH_SECONDS:
            self._ask()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it would name the frames of each caller
        return self._topics

    def _ask(self) -> None:
        try:
            self._topics, self._failure = listed(self._answer(self._admin.listTopics().listings())), None
        except Exception as failure:  # noqa: BLE001 - kept, and raised for every caller
            self._failure = failure
        self._asked_at = self._now()

    def earliest(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, int]:
        """Return the first offset that each partition has."""
        if partitions != self._asked_of:
            admin, questions = self._java.org.apache.kafka.clients.admin, self._java.java.util.HashMap()
            for topic, number in partitions:
                questions.put(
                    self._java.org.apache.kafka.common.TopicPartition(topic, int(number)), admin.OffsetSpec.earliest()
                )
            self._asked_of, self._questions = frozenset(partitions), questions
        return begins(self._answer(self._admin.listOffsets(self._questions).all()))

    def commit(self, groups: Mapping[str, Mapping[PartitionName, int]]) -> None:
        """Commit offsets for consumer groups that have no members."""
        # Send all requests before the first wait.
        for future in [self._altered(group, partitions) for group, partitions in groups.items()]:
            self._wait(future)

    def _altered(self, group: str, partitions: Mapping[PartitionName, int]) -> Any:
        at, offsets = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata, self._java.java.util.HashMap()
        for (topic, number), offset in partitions.items():
            offsets.put(self._java.org.apache.kafka.common.TopicPartition(topic, int(number)), at(offset))
        return self._admin.alterConsumerGroupOffsets(group, offsets).all()

    @property
    def _admin(self) -> Any:
        """The client, made at first use: a host name that cannot be resolved now may be resolved later."""
        if self._client is None:
            properties = self._java.java.util.Properties()
            for name, value in self._kafka.items():
                properties.setProperty(name.removeprefix(KAFKA), value)
            with saying_why():
                self._client = self._java.org.apache.kafka.clients.admin.Admin.create(properties)
        return self._client

    def _answer(self, future: Any) -> str:
        """Return an answer as text. This is one call to Java; a call for each element would be thousands."""
        return str(self._wait(future).toString())

    def _wait(self, future: Any) -> Any:
        with saying_why():
            return future.get(ANSWER_SECONDS, self._java.java.util.concurrent.TimeUnit.SECONDS)


@contextmanager
def saying_why() -> Iterator[None]:
    """Turn an error that Java raises into an UnansweredError with one sentence.

    The text of Py4J's error begins with a number.
    """
    try:
        yield
    except Py4JJavaError as error:
        raise UnansweredError(str(error.java_exception.toString())) from error


def listed(text: str) -> dict[str, str]:
    """Parse the topics and their ids from the text of the client's list of TopicListing.

    Raises UnansweredError if the text has an unknown form.
    """
    ids = dict(LISTED.findall(text))
    if len(ids) != text.count("(name="):
        raise UnansweredError(f"the client lists topics in an unknown form: {text[:200]}")
    return ids


def begins(text: str) -> dict[PartitionName, int]:
    """Parse the offsets by partition from the text of the client's answer.

    Raises UnansweredError if it has an unknown form.
    """
    offsets = {(topic, number): int(offset) for topic, number, offset in OFFSET.findall(text)}
    if len(offsets) != text.count("=ListOffsetsResultInfo"):
        raise UnansweredError(f"the client tells offsets in an unknown form: {text[:200]}")
    return offsets
