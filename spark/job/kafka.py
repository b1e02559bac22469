"""Ask the brokers, through the Kafka client of Spark's connector: a cluster of Spark need not have any other client.

`Brokers` is used by the job's main thread alone. Each answer has a deadline. While a question waits, the log says what
for, and a request to stop ends the wait. There are two kinds of failure:

- `UnansweredError`: no answer in time, or a job that must stop. It is true of all groups.
- `RefusedError`: Kafka's answer is an error. It may be true of one group alone, so the caller asks about each.

Py4J takes a call for each object of Java, 0.2 ms. So an answer about thousands of partitions is taken as one text,
which is parsed here. Its form is that of `toString` in Kafka's client; an answer in another form is an error, never a
guess. The one text that others than brokers write is the metadata of a committed offset: any client that may commit
for the group chooses its bytes. A position therefore counts only in exactly the form that this job writes, and each
group's answer is parsed alone, so that one group's bytes cannot speak of another's partitions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reconsume.spark.errors import JobError
from reconsume.spark.java import classes

ANSWER_SECONDS = 5.0
"""Seconds that one answer may take."""
START_SECONDS = 45.0
"""Seconds that all answers for one start of the query may take together: the first question about hundreds of groups
is about thousands of partitions. Less than the minute after which `/livez` reports a job that stands still."""
STOPPING_SECONDS = 2.0
"""Seconds that an answer may take once the job must stop: the last position is still committed, if Kafka answers."""
LOOK_MS = 500
"""ms between two checks whether the job must stop."""
SAY_SECONDS = 5.0
"""Seconds between two lines that say what is waited for."""
PREFIX = "kafka."
"""How the names of Spark's options for connecting to Kafka begin."""
CLIENTS = "org.apache.kafka.clients"
PASSING = re.compile(r"\b(Timeout|Disconnect|BrokerNotAvailable|CoordinatorLoadInProgress|NotCoordinator)\w*")
"""Errors of Kafka that are about the brokers, and not about what was asked."""

LISTED = re.compile(r"\(name=([^,]+), topicId=([^,]+), internal=")
DESCRIBED = re.compile(
    r"\(name=([^,]+), internal=|\(partition=(\d+), leader=(\S+)|authorizedOperations=(\[.*?\]|null)\)"
)
OFFSET = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+),")
COMMITTED = re.compile(
    r"(?:\{|, )([\w.-]+)-(\d+)=OffsetAndMetadata\{offset=(\d+), leaderEpoch=[^,']*, metadata='(1 [\w-]+ [\w-]+)'\}",
    re.ASCII,
)

PartitionName: TypeAlias = tuple[str, str]
"""A topic and a partition's number, as Spark writes it."""


class Position(NamedTuple):
    """A committed offset: the next one to read, and the commit's metadata."""

    offset: int
    metadata: str


class UnansweredError(JobError):
    """The brokers have not answered in time, or the answer has an unknown form."""


class RefusedError(JobError):
    """Kafka has answered with an error."""


class Brokers:
    """A Kafka admin client; the job uses one from start to end. Methods raise UnansweredError and RefusedError.

    `kafka` holds Spark's options for connecting to Kafka; `stopping` says whether the job must stop; `now` are seconds
    of a clock that never goes back.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Mapping[str, str],
        *,
        stopping: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda _text: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka, self._stopping, self._say, self._now = kafka, stopping, say, now
        self._java, self._deadline = classes(spark), float("inf")
        self._client: Any = None
        # A name of Java is looked up once: each time costs 1.5 ms. So are partitions, which are most of a commit's CPU.
        self._class = lru_cache(maxsize=None)(lambda name: reduce(getattr, name.split("."), self._java))
        self._partition = lru_cache(maxsize=20_000)(
            lambda topic, number: self._class("org.apache.kafka.common.TopicPartition")(topic, int(number))
        )

    @contextmanager
    def within(self, seconds: float = START_SECONDS) -> Iterator[None]:
        """Let all questions of the `with` block share so many seconds; within another such block, at most its."""
        outer, self._deadline = self._deadline, min(self._deadline, self._now() + seconds)
        try:
            yield
        finally:
            self._deadline = outer

    def close(self) -> None:
        """End the client, without a wait for its answers."""
        if self._client is not None:
            self._client.close(self._class("java.time.Duration").ZERO)

    def topics(self) -> dict[str, str]:
        """Return the id of each topic that Kafka shows to this client, by name."""
        return listed(str(self._answer(self._admin.listTopics().listings(), "its topics").toString()))

    def partitions(self, readable: Collection[str], writable: Collection[str] = ()) -> list[PartitionName]:
        """Return the partitions of the readable topics.

        Raises RefusedError if this user may not read or write a topic as wanted, or if a partition has no leader.
        """
        names = self._made("java.util.ArrayList")
        for topic in (*readable, *writable):
            names.add(topic)
        options = self._made(f"{CLIENTS}.admin.DescribeTopicsOptions").includeAuthorizedOperations(True)
        what = f"the partitions of {len(readable) + len(writable)} topics"
        topics = described(
            str(self._answer(self._admin.describeTopics(names, options).allTopicNames(), what).toString())
        )
        for topic, right in (*((topic, "READ") for topic in readable), *((topic, "WRITE") for topic in writable)):
            if (rights := topics[topic].rights) is not None and right not in rights:
                raise RefusedError(f"this user has no right to {right} {topic}")
        lost = [
            (topic, number) for topic, one in topics.items() for number, leader in one.leaders.items() if not leader
        ]
        if lost:
            raise RefusedError("partition {1} of {0} has no leader".format(*lost[0]))
        return [(topic, number) for topic in readable for number in topics[topic].leaders]

    def first_offsets(self, partitions: Collection[PartitionName]) -> dict[PartitionName, int]:
        """Return the first offset that each partition has."""
        return self._offsets(partitions, "earliest")

    def end_offsets(self, partitions: Collection[PartitionName]) -> dict[PartitionName, int]:
        """Return the offset behind the last record of each partition."""
        return self._offsets(partitions, "latest")

    def _offsets(self, partitions: Collection[PartitionName], which: str) -> dict[PartitionName, int]:
        questions, wanted = (
            self._made("java.util.HashMap"),
            getattr(self._class(f"{CLIENTS}.admin.OffsetSpec"), which)(),
        )
        for partition in partitions:
            questions.put(self._partition(*partition), wanted)
        what = f"the {which} offsets of {len(partitions)} partitions"
        return offsets_in(str(self._answer(self._admin.listOffsets(questions).all(), what).toString()))

    def committed(self, groups: Collection[str]) -> dict[PartitionName, Position]:
        """Return the positions of this job's form that consumer groups have committed, by partition.

        No two of the groups may have committed in one topic.
        """
        specs = self._made("java.util.HashMap")
        for group in groups:
            specs.put(group, self._made(f"{CLIENTS}.admin.ListConsumerGroupOffsetsSpec"))
        what = f"the positions of {len(groups)} groups"
        offsets_by_group = self._answer(self._admin.listConsumerGroupOffsets(specs).all(), what)
        positions: dict[PartitionName, Position] = {}
        for group in groups:
            positions |= positions_in(str(offsets_by_group.get(group).toString()))
        return positions

    def commit(self, groups: Mapping[str, Mapping[PartitionName, Position]]) -> dict[str, str]:
        """Commit offsets for consumer groups that have no members. Return why a group's were refused, by group."""
        # Send all requests before the first wait; they share one answer's time.
        futures = {group: self._altered(group, positions) for group, positions in groups.items()}
        refused, end = dict[str, str](), self._now() + ANSWER_SECONDS
        for group, future in futures.items():
            try:
                self._answer(future, f"that it has the positions of {len(groups)} groups", end)
            except JobError as why:
                refused[group] = str(why)
        return refused

    def _altered(self, group: str, positions: Mapping[PartitionName, Position]) -> Any:
        offsets, position_class = self._made("java.util.HashMap"), f"{CLIENTS}.consumer.OffsetAndMetadata"
        for partition, position in positions.items():
            offsets.put(self._partition(*partition), self._class(position_class)(*position))
        return self._admin.alterConsumerGroupOffsets(group, offsets).all()

    def _made(self, name: str) -> Any:
        return self._class(name)()

    @property
    def _admin(self) -> Any:
        """The client, made at first use."""
        if self._client is None:
            properties = self._made("java.util.Properties")
            for name, value in self._kafka.items():
                properties.setProperty(name.removeprefix(PREFIX), value)
            try:
                self._client = self._class(f"{CLIENTS}.admin.Admin").create(properties)
            except Py4JJavaError as error:
                raise UnansweredError(cause_of(error)) from error
        return self._client

    def _answer(self, future: Any, what: str, end: float | None = None) -> Any:
        """Wait for an answer until `end`, by default for ANSWER_SECONDS or until the deadline of a start."""
        began = said_at = self._now()
        if end is None:
            end = self._deadline if self._deadline < float("inf") else began + ANSWER_SECONDS
        while not future.isDone():
            now = self._now()
            if self._stopping() and now - began >= STOPPING_SECONDS:
                raise UnansweredError(f"the job stops, and Kafka has not answered about {what}")
            if now >= end:
                raise UnansweredError(f"Kafka has not answered about {what} in {now - began:.0f} s")
            if now - said_at >= SAY_SECONDS:
                self._say(f"Kafka has not answered about {what} for {now - began:.0f} s")
                said_at = now
            try:
                future.get(LOOK_MS, self._class("java.util.concurrent.TimeUnit").MILLISECONDS)
            except Py4JJavaError:
                continue  # it is not there yet, or it is an error, which is raised below
        try:
            return future.get()
        except Py4JJavaError as error:
            cause = cause_of(error)
            raise (UnansweredError if PASSING.search(cause) else RefusedError)(cause) from error


def cause_of(error: Py4JJavaError) -> str:
    """Return what Java says of an error that it raised: the text of Py4J begins with a number."""
    text = str(error.java_exception.toString())
    return text.removeprefix("java.util.concurrent.ExecutionException: ").removeprefix(
        "org.apache.kafka.common.errors."
    )


class Described(NamedTuple):
    """A topic: whether each partition has a leader, and what this user may do; None if the brokers do not say."""

    leaders: dict[str, bool]
    rights: frozenset[str] | None


def listed(text: str) -> dict[str, str]:
    """Parse the topics and their ids from the client's list. Raises UnansweredError if it has an unknown form."""
    ids = dict(LISTED.findall(text))
    if len(ids) != text.count("(name="):
        raise UnansweredError(f"the client lists topics in an unknown form: {text[:200]}")
    return ids


def described(text: str) -> dict[str, Described]:
    """Parse the client's descriptions of topics. Raises UnansweredError if a topic has no partition, or has no end."""
    topics: dict[str, Described] = {}
    topic, leaders = "", dict[str, bool]()
    for name, number, leader, rights in DESCRIBED.findall(text):
        if name:
            topic, leaders = name, {}
        elif number:
            leaders[number] = not leader.startswith("none")
        else:
            topics[topic] = Described(leaders, None if rights == "null" else frozenset(rights[1:-1].split(", ")))
    if len(topics) != text.count("(name=") or not all(one.leaders for one in topics.values()):
        raise UnansweredError(f"the client describes topics in an unknown form: {text[:200]}")
    return topics


def offsets_in(text: str) -> dict[PartitionName, int]:
    """Parse the client's offsets by partition. Raises UnansweredError if they have an unknown form."""
    offsets = {(topic, number): int(offset) for topic, number, offset in OFFSET.findall(text)}
    if len(offsets) != text.count("=ListOffsetsResultInfo"):
        raise UnansweredError(f"the client gives offsets in an unknown form: {text[:200]}")
    return offsets


def positions_in(text: str) -> dict[PartitionName, Position]:
    """Parse the committed offsets of one consumer group. What is not of this job's form is left out."""
    return {(topic, number): Position(int(offset), said) for topic, number, offset, said in COMMITTED.findall(text)}
