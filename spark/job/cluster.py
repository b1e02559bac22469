"""Ask the brokers through the Kafka client of Spark's connector: a cluster need not have any other client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reconsume.spark.java import classes
from reconsume.spark.job.answers import ANSWER_SECONDS, START_SECONDS, Answers, UnansweredError
from reconsume.spark.job.kafka_classes import KafkaClasses
from reconsume.spark.job.positions import PartitionName, Position

KAFKA = "kafka."
"""How the names of Spark's options for connecting to Kafka begin."""
FRESH_SECONDS = 1.0
"""Seconds for which an answer is used again, because several queries ask the same question."""
MOST_NAMED = 20_000
"""Partitions whose names are kept in Java."""
LISTED = re.compile(r"\(name=([^,]+), topicId=([^,]+), internal=")
DESCRIBED = re.compile(r"\(name=([^,]+), internal=|\(partition=(\d+),")
COMMITTED = re.compile(r"([\w.-]+)-(\d+)=OffsetAndMetadata\{offset=(\d+), leaderEpoch=[^,]*, metadata='([^']*)'\}")
OFFSET = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+),")


class Cluster:
    """A Kafka admin client that the whole job uses, from start to end.

    `kafka` holds Spark's options for connecting to Kafka. Methods raise UnansweredError; errors of Py4J are raised as
    they are.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
        answers: Answers | None = None,
    ) -> None:
        self._classes, self._kafka, self._now = KafkaClasses(classes(spark)), kafka, now
        self._answers = answers or Answers()
        self._client: Any = None
        self._topics: dict[str, str] = {}
        self._asked_at: float | None = None
        self._failure: Exception | None = None
        # Each object that is made in Java is a call. With thousands of partitions they are most of a commit's CPU.
        self._named: dict[PartitionName, Any] = {}
        self._questions_by_spec: dict[str, tuple[tuple[PartitionName, ...], Any]] = {}

    def close(self) -> None:
        """End the client, without a wait for its answers."""
        if self._client is not None:
            self._client.close(self._classes.duration.ZERO)

    def starting(self) -> AbstractContextManager[None]:
        """Let all questions of the `with` block, those of one start of a query, share START_SECONDS."""
        return self._answers.within(START_SECONDS)

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
            self._topics, self._failure = listed(self._answer(self._admin.listTopics().listings(), "its topics")), None
        except Exception as failure:  # noqa: BLE001 - kept, and raised for every caller
            self._failure = failure
        self._asked_at = self._now()

    def partitions(self, topics: Collection[str]) -> list[PartitionName]:
        """Return the partitions of topics."""
        named = self._classes.array_list()
        for topic in topics:
            named.add(topic)
        what = f"the partitions of {len(topics)} topics"
        return described(self._answer(self._admin.describeTopics(named).allTopicNames(), what))

    def spans(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, tuple[int, int]]:
        """Return the first offset that each partition has, and the one behind its last."""
        firsts, ends = self.earliest(partitions), self._offsets(partitions, "latest")
        return {partition: (first, ends[partition]) for partition, first in firsts.items()}

    def earliest(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, int]:
        """Return the first offset that each partition has."""
        return self._offsets(partitions, "earliest")

    def _offsets(self, partitions: Collection[PartitionName], which: str) -> Mapping[PartitionName, int]:
        questions = self._question_map(tuple(sorted(partitions)), which)
        what = f"the {which} offsets of {len(partitions)} partitions"
        return begins(self._answer(self._admin.listOffsets(questions).all(), what))

    def _question_map(self, partitions: tuple[PartitionName, ...], which: str) -> Any:
        """Return what is asked of partitions: the map of the last call, if it was about the same ones."""
        former, questions = self._questions_by_spec.get(which, ((), None))
        if questions is None or former != partitions:
            wanted = getattr(self._classes.offset_spec, which)()
            questions = self._classes.hash_map()
            for partition in partitions:
                questions.put(self._partition(partition), wanted)
            self._questions_by_spec[which] = partitions, questions
        return questions

    def _partition(self, partition: PartitionName) -> Any:
        if (named := self._named.get(partition)) is None:
            if len(self._named) >= MOST_NAMED:  # of groups that came and went
                self._named.clear()
            named = self._classes.topic_partition(partition[0], int(partition[1]))
            self._named[partition] = named
        return named

    def committed(self, groups: Collection[str]) -> Mapping[PartitionName, Position]:
        """Return what consumer groups have committed, by partition: no two of them may have committed in one topic."""
        specs = self._classes.hash_map()
        for group in groups:
            specs.put(group, self._classes.group_offsets_spec())
        what = f"the positions of {len(groups)} groups"
        return positions_in(self._answer(self._admin.listConsumerGroupOffsets(specs).all(), what))

    def commit(self, groups: Mapping[str, Mapping[PartitionName, Position]]) -> Mapping[str, str]:
        """Commit offsets for consumer groups that have no members. Return why a group's were refused, by group."""
        # Send all requests before the first wait.
        futures = {group: self._altered(group, partitions) for group, partitions in groups.items()}
        refused: dict[str, str] = {}
        with self._answers.within(ANSWER_SECONDS):
            for group, future in futures.items():
                try:
                    self._wait(future, f"that it has the positions of {len(groups)} groups")
                except UnansweredError as why:
                    refused[group] = str(why)
        return refused

    def _altered(self, group: str, partitions: Mapping[PartitionName, Position]) -> Any:
        at, offsets = self._classes.offset_and_metadata, self._classes.hash_map()
        for partition, position in partitions.items():
            offsets.put(self._partition(partition), at(position.offset, position.metadata))
        return self._admin.alterConsumerGroupOffsets(group, offsets).all()

    @property
    def _admin(self) -> Any:
        """The client, made at first use: a host name that cannot be resolved now may be resolved later."""
        if self._client is None:
            properties = self._classes.properties()
            for name, value in self._kafka.items():
                properties.setProperty(name.removeprefix(KAFKA), value)
            with saying_why():
                self._client = self._classes.admin.create(properties)
        return self._client

    def _answer(self, future: Any, what: str) -> str:
        """Return an answer as text. This is one call to Java; a call for each element would be thousands."""
        return str(self._wait(future, what).toString())

    def _wait(self, future: Any, what: str) -> Any:
        self._answers.until(lambda seconds: self._is_there(future, seconds), what)
        with saying_why():
            return future.get()

    def _is_there(self, future: Any, seconds: float) -> bool:
        """Wait for an answer, or for an error in its stead. Return whether it is there."""
        try:
            future.get(int(seconds * 1000), self._classes.milliseconds)
        except Py4JJavaError:
            return bool(future.isDone())
        return True


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


def described(text: str) -> list[PartitionName]:
    """Parse partitions from the text of the client's descriptions of topics.

    Raises UnansweredError if a topic has none, which is an unknown form.
    """
    numbers_by_topic: dict[str, list[str]] = {}
    topic = ""
    for name, number in DESCRIBED.findall(text):
        topic = name or topic
        numbers_by_topic.setdefault(topic, []).extend(filter(None, [number]))
    if not all(numbers_by_topic.values()):
        raise UnansweredError(f"the client describes topics in an unknown form: {text[:200]}")
    return [(name, number) for name, numbers in numbers_by_topic.items() for number in numbers]


def positions_in(text: str) -> dict[PartitionName, Position]:
    """Parse committed offsets from the text of the client's answer.

    Raises UnansweredError if it has an unknown form.
    """
    positions = {
        (topic, number): Position(int(offset), metadata) for topic, number, offset, metadata in COMMITTED.findall(text)
    }
    if len(positions) != text.count("=OffsetAndMetadata{"):
        raise UnansweredError(f"the client tells committed offsets in an unknown form: {text[:200]}")
    return positions


def begins(text: str) -> dict[PartitionName, int]:
    """Parse the offsets by partition from the text of the client's answer.

    Raises UnansweredError if it has an unknown form.
    """
    offsets = {(topic, number): int(offset) for topic, number, offset in OFFSET.findall(text)}
    if len(offsets) != text.count("=ListOffsetsResultInfo"):
        raise UnansweredError(f"the client tells offsets in an unknown form: {text[:200]}")
    return offsets
