"""The job's queries on a broker whose topics come and go, in one session of Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    OffsetSpec,
)
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from reconsume.spark.job.answers import UnansweredError
from reconsume.spark.job.cluster import FRESH_SECONDS, Cluster
from reconsume.spark.job.listener import Listener
from reconsume.spark.job.liveness import Liveness
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.positions import PartitionName, ReadPositions
from reconsume.spark.job.queries import QUERIES, Queries
from reconsume.spark.job.supervisor import PASSING
from reconsume.spark.options import Run, parse
from reconsume.topics.names import Kind, Names
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import SECONDS, delete_topics, dump
from tests.support.kafka.view_topics import create_view_topics, event, sums_of, tell, view_of

SOON = 60.0
SELDOM = 0.2


class Life:
    """Queries of a job, begun and stopped on one checkpoint; `said` is what the listener told."""

    def __init__(self, spark: SparkSession, bootstrap: str, place: Path) -> None:
        self.bootstrap, self.place, self.prefix = bootstrap, place, f"life-{uuid.uuid4().hex[:8]}"
        self.meters, self.said = Meters(QUERIES, Liveness(QUERIES, time.monotonic)), list[str]()
        self.kafka = {"kafka.bootstrap.servers": bootstrap}
        self._starts = 0
        self.cluster = Cluster(spark, self.kafka, lambda: time.monotonic() + 2 * FRESH_SECONDS * self._starts)
        self.positions = ReadPositions(0.0)
        self.listener = Listener(self.meters, self.said.append, self.cluster, self.positions)
        self._spark = spark

    def group(self, name: str) -> str:
        """A new group with the topics of a view."""
        return create_view_topics(self.bootstrap, f"{self.prefix}-{name}").group

    def told(self, topic: str) -> dict[int, int]:
        """How far the view has read, as its readers hear it."""
        group = Names(topic.removesuffix("-RETRY-EVENTS")).view_group
        with closing(Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})) as consumer:
            parts = [TopicPartition(topic, number) for number in self.ends(topic)]
            return {part.partition: part.offset for part in consumer.committed(parts, timeout=SECONDS)}

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        numbers = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}
        return {part.partition: end.result(SECONDS).offset for part, end in admin.list_offsets(asked).items()}

    def forget_commits(self, query: str) -> None:
        """Have the first batch of a stopped query done again, and no other: a batch without data may have followed."""
        place = self.place / query
        files = [*place.glob("commits/[0-9]*"), *place.glob("commits/.[0-9]*")]
        later = [*place.glob("offsets/[1-9]*"), *place.glob("offsets/.[1-9]*")]
        for file in (*files, *later):
            file.unlink()

    @contextmanager
    def running(self, query: str, *words: str) -> Iterator[Callable[[Callable[[], object], str], None]]:
        """The query while it runs; yields a wait in which it must not fail. As a new job, it knows no topics yet."""
        self._starts += 1
        options = parse(["run", f"--checkpoint={self.place}", "--trigger=200ms", "--slow-trigger=200ms", *words])
        assert isinstance(options, Run)
        queries = Queries(self._spark, options, self.kafka, self.cluster, self.meters, self.positions)
        running = queries.starts[query]()

        def wait(predicate: Callable[[], object], what: str) -> None:
            def asked() -> object:
                assert (fault := running.turn()) is None, f"{fault}, waiting for: {what}"
                with suppress(KafkaException):  # a broker that is named as leader a moment before it knows
                    return predicate()
                return False

            until(asked, SOON, what, SELDOM)

        try:
            yield wait
        finally:
            running.stop()


@pytest.fixture
def life(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Iterator[Life]:
    life = Life(spark, kafka.bootstrap, tmp_path / "place")
    spark.streams.addListener(life.listener)
    yield life
    spark.streams.removeListener(life.listener)


def value_of(registry: CollectorRegistry, name: str, query: str) -> float:
    return registry.get_sample_value(f"reconsume_spark_{name}", {"query": query}) or 0.0


@pytest.mark.long
def test_sums_of_a_group_that_was_removed_are_not_written_and_stop_no_other(life: Life) -> None:
    a, b = life.group("a"), life.group("b")
    for group in (a, b):
        tell(life.bootstrap, [event(group, 1)])
    with life.running("stats", f"--groups={a},{b}") as wait:
        wait(lambda: sums_of(life.bootstrap, a) and sums_of(life.bootstrap, b), "the minute that runs is told of both")
    life.forget_commits("stats")  # as when the driver was killed in its first batch: it is planned, and done again
    delete_topics(life.bootstrap, Names(b).stats)
    tell(life.bootstrap, [event(a, 2)])
    with life.running("stats", f"--groups={a},{b}") as wait:
        wait(lambda: waiting(sums_of(life.bootstrap, a)) == 2, "the group that is left goes on")
        wait(lambda: life.said, "what was not written is told")
    assert f"the stats query did not write 1 rows: no topic {Names(b).stats}" in life.said
    assert value_of(life.meters.registry, "rows_without_topic_total", "stats") == 1


def waiting(sums: dict[str, Any]) -> int:
    return sum(row["waiting"] for row in sums.values())


@pytest.mark.long
def test_sums_whose_topic_was_made_anew_are_counted_again_and_come_back_whole(life: Life) -> None:
    a, b = life.group("a"), life.group("b")
    for group in (a, b):
        tell(life.bootstrap, [event(group, number) for number in range(5)])
    with life.running("stats", f"--groups={a},{b}") as wait:
        wait(lambda: all(waiting(sums_of(life.bootstrap, group)) == 5 for group in (a, b)), "all are counted")
        anew(life, a, "stats")
        wait(lambda: waiting(sums_of(life.bootstrap, a)) == 5, "they come back while it runs")
    anew(life, a, "stats")
    tell(life.bootstrap, [event(b, 6)])
    with life.running("stats", f"--groups={a},{b}") as wait:
        wait(lambda: waiting(sums_of(life.bootstrap, a)) == 5, "they come back after a stop")
        wait(lambda: waiting(sums_of(life.bootstrap, b)) == 6, "and the others say no more than there is")


def anew(life: Life, group: str, *kinds: str) -> None:
    """Delete topics of the group and create them again."""
    delete_topics(life.bootstrap, *(getattr(Names(group), kind) for kind in kinds))
    create_view_topics(life.bootstrap, group, [Kind(kind) for kind in kinds])


@pytest.mark.long
def test_groups_that_come_and_go_change_nothing_for_the_others(life: Life) -> None:
    a, b, pattern = life.group("a"), life.group("b"), f"--pattern={life.prefix}-.*"
    for group in (a, b):
        tell(life.bootstrap, [event(group, 1)])
    with life.running("view", pattern) as wait:
        assert min(life.told(Names(a).events).values()) >= 0, "the position is told before the first batch"
        wait(lambda: view_of(life.bootstrap, a) and view_of(life.bootstrap, b), "both have a row")
        delete_topics(life.bootstrap, Names(b).view)
        tell(life.bootstrap, [event(a, 2)])
        wait(lambda: len(view_of(life.bootstrap, a)) == 2, "the group that is left goes on")
        tell(life.bootstrap, [event(b, 2)])
        again = life.group("again")
        tell(life.bootstrap, [event(again, 1)])
        wait(lambda: view_of(life.bootstrap, again), "a group that is made meanwhile has its view")
        delete_topics(life.bootstrap, Names(b).stats, Names(b).events)
        assert life.group("b") == b
        tell(life.bootstrap, [event(b, 3)])
        wait(lambda: "orders:0:3" in view_of(life.bootstrap, b), "the group that is made anew is read anew")
    delete_topics(life.bootstrap, *(getattr(Names(b), kind) for kind in ("events", "view", "stats")))
    tell(life.bootstrap, [event(a, 3)])
    with life.running("view", pattern) as wait:
        wait(lambda: len(view_of(life.bootstrap, a)) == 3, "a group that was deleted meanwhile holds up no other")


@pytest.mark.long
def test_a_view_whose_topic_or_events_were_made_anew_is_read_anew_and_whole(life: Life) -> None:
    """While the job runs, also faster than it looks, and while it is stopped; the new topic shorter or longer."""
    group, other = life.group("only"), life.group("other")
    tell(life.bootstrap, [event(group, number) for number in range(30)])
    tell(life.bootstrap, [event(other, number) for number in range(30)])
    words = f"--groups={group},{other}"
    with life.running("view", words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 30, "all have a row")
        anew(life, group, "view")
        tell(life.bootstrap, [event(group, 30)])
        wait(lambda: len(view_of(life.bootstrap, group)) == 31, "its rows come back while the job runs")
    anew(life, group, "view")
    with life.running("view", words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 31, "its rows come back after a stop")
    anew(life, group, "events")
    tell(life.bootstrap, [event(group, number) for number in range(100, 140)])  # more than the old one had
    with life.running("view", words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 71, "every event of the new topic is in the view")
        anew(life, group, "events", "view")
        tell(life.bootstrap, [event(group, number) for number in range(3)])
        wait(lambda: len(view_of(life.bootstrap, group)) == 3, "all three are another one")
        wait(lambda: life.told(Names(group).events) == life.ends(Names(group).events), "how far it has read is told")
    assert len(dump(life.bootstrap, Names(other).view)) == 30, "and of the other group no row was written again"


@pytest.mark.long
def test_events_that_were_deleted_before_they_were_read_are_counted_and_named(life: Life) -> None:
    """Where Kafka does not answer in time it is said that they may be uncounted: then it is tried with other events."""
    for name in ("late", "later", "last"):
        group = life.group(name)
        said = said_of_seven_deleted_events(life, group)
        if not said.startswith("the first offsets cannot be read"):
            break
    events = Names(group).events
    assert said.startswith(f"7 events of {events} were deleted before the view read them")
    assert life.meters.registry.get_sample_value("reconsume_view_events_lost_total", {"topic": events}) == 7


def said_of_seven_deleted_events(life: Life, group: str) -> str:
    """Stop the view after its first event, and delete the next seven before it goes on."""
    events = Names(group).events
    life.said.clear()
    tell(life.bootstrap, [event(group, 1)])
    with life.running("view", f"--groups={group}") as wait:
        wait(lambda: view_of(life.bootstrap, group), "the first has a row")
    tell(life.bootstrap, [event(group, number) for number in range(2, 9)])
    admin = AdminClient({"bootstrap.servers": life.bootstrap})
    parts = [TopicPartition(events, number, OFFSET_END) for number in life.ends(events)]
    for future in admin.delete_records(parts).values():
        future.result(SECONDS)
    with life.running("view", f"--groups={group}") as wait:
        wait(lambda: life.said, "what was lost is told")
        wait(lambda: life.told(events) == life.ends(events), "how far the view has read is told")
    [said] = life.said
    return said


class Lagging(Cluster):
    """Brokers that do not know the newest partition yet."""

    def partitions(self, topics: Collection[str]) -> list[PartitionName]:
        return super().partitions(topics)[:-1]


@pytest.mark.long
def test_a_partition_that_appears_between_its_listing_and_the_start_is_no_failure(
    life: Life, spark: SparkSession
) -> None:
    group = life.group("growing")
    options = parse(["run", f"--checkpoint={life.place}", f"--groups={group}"])
    assert isinstance(options, Run)
    cluster = Lagging(spark, life.kafka)
    running = Queries(spark, options, life.kafka, cluster, life.meters, life.positions).starts["view"]()
    assert until(running.turn, SOON, "Spark has found one more partition", SELDOM) == PASSING


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        pytest.param("127.0.0.1:1", "Kafka has not told", marks=pytest.mark.long),
        ("nosuch.invalid:9092", "Failed to create new KafkaAdminClient"),
    ],
)
def test_brokers_that_do_not_answer_are_a_failure_in_one_sentence(
    spark: SparkSession, bootstrap: str, says: str
) -> None:
    cluster = Cluster(spark, {"kafka.bootstrap.servers": bootstrap})
    with pytest.raises(UnansweredError, match=says) as raised:
        cluster.topics()
    assert "\n" not in str(raised.value)
    with pytest.raises(UnansweredError, match=says):
        cluster.committed(["billing-RETRY-VIEW"])
