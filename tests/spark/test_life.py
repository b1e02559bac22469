"""The view's query on a broker whose topics come and go, in one session of Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    OffsetSpec,
)
from pyspark.sql import SparkSession

from reconsume.spark.errors import JobError
from reconsume.spark.job.groups import FollowedGroups
from reconsume.spark.job.kafka import Brokers, PartitionName, UnansweredError
from reconsume.spark.job.metrics import JobMetrics
from reconsume.spark.job.query import ViewWork
from reconsume.spark.options import Run, parse
from reconsume.topics.acls import Operation, Permission, Resource
from reconsume.topics.names import Kind, Names
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.guarded import guarded_kafka
from tests.support.kafka.raw_producer import commit_raw
from tests.support.kafka.topic_io import SECONDS, delete_topics, dump
from tests.support.kafka.view_topics import create_view_topics, event, tell, view_of

KINDS = (Kind.EVENTS, Kind.VIEW)

SOON = 60.0
SELDOM = 0.2


class Life:
    """The query of a job, begun and stopped; `said` is what the job's log says."""

    def __init__(self, spark: SparkSession, bootstrap: str, kafka: dict[str, str] | None = None) -> None:
        self.bootstrap, self.prefix, self._spark = bootstrap, f"life-{uuid.uuid4().hex[:8]}", spark
        self.metrics, self.said = JobMetrics(), list[str]()
        self._kafka = kafka or {"kafka.bootstrap.servers": bootstrap}

    def group(self, name: str) -> str:
        """A new group with the topics of a view."""
        return create_view_topics(self.bootstrap, f"{self.prefix}-{name}", KINDS).group

    def committed(self, topic: str) -> dict[int, int]:
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

    @contextmanager
    def running(
        self, *words: str, brokers: Brokers | None = None
    ) -> Iterator[Callable[[Callable[[], object], str], None]]:
        """The query while it runs; yields a wait in which the job must not end."""
        options = parse(["run", "--trigger=200ms", *words])
        assert isinstance(options, Run)
        brokers = brokers or Brokers(self._spark, self._kafka)
        work = ViewWork(self._spark, options, self._kafka, brokers, self.metrics, self.said.append)
        groups = FollowedGroups(work, time.monotonic, self.said.append)
        with brokers.within():
            groups.begin()

        def wait(predicate: Callable[[], object], what: str) -> None:
            def asked() -> object:
                groups.turn()
                work.take_progress()
                with suppress(KafkaException):  # a broker that is named as leader a moment before it knows
                    return predicate()
                return False

            until(asked, SOON, what, SELDOM)

        try:
            yield wait
        finally:
            groups.stop()


@pytest.fixture
def life(spark: SparkSession, kafka: Broker) -> Life:
    return Life(spark, kafka.bootstrap)


def recreate(life: Life, group: str, *kinds: str) -> None:
    """Delete topics of the group and create them again."""
    delete_topics(life.bootstrap, *(getattr(Names(group), kind) for kind in kinds))
    create_view_topics(life.bootstrap, group, [Kind(kind) for kind in kinds])


@pytest.mark.long
def test_groups_that_come_and_go_change_nothing_for_the_others(life: Life) -> None:
    a, b, pattern = life.group("a"), life.group("b"), f"--pattern={life.prefix}-.*"
    for group in (a, b):
        tell(life.bootstrap, [event(group, 1)])
    with life.running(pattern) as wait:
        assert min(life.committed(Names(a).events).values()) >= 0, "the position is committed before the first batch"
        wait(lambda: view_of(life.bootstrap, a) and view_of(life.bootstrap, b), "both have a row")
        delete_topics(life.bootstrap, Names(b).view)
        tell(life.bootstrap, [event(a, 2)])
        wait(lambda: len(view_of(life.bootstrap, a)) == 2, "the group that is left goes on")
        tell(life.bootstrap, [event(b, 2)])
        again = life.group("again")
        tell(life.bootstrap, [event(again, 1)])
        wait(lambda: view_of(life.bootstrap, again), "a group that is made meanwhile has its view")
        delete_topics(life.bootstrap, Names(b).events)
        assert life.group("b") == b
        tell(life.bootstrap, [event(b, 3)])
        wait(
            lambda: "orders:0:3" in view_of(life.bootstrap, b),
            "the group that is recreated is read from its first event",
        )
    delete_topics(life.bootstrap, *(getattr(Names(b), kind) for kind in ("events", "view")))
    tell(life.bootstrap, [event(a, 3)])
    with life.running(pattern) as wait:
        wait(lambda: len(view_of(life.bootstrap, a)) == 3, "a group that was deleted meanwhile holds up no other")


@pytest.mark.long
def test_a_view_whose_topic_or_events_were_recreated_is_read_again_and_whole(life: Life) -> None:
    """While the job runs, also faster than it looks, and while it is stopped; the new topic shorter or longer."""
    group, other = life.group("only"), life.group("other")
    tell(life.bootstrap, [event(group, number) for number in range(30)])
    tell(life.bootstrap, [event(other, number) for number in range(30)])
    words = f"--groups={group},{other}"
    with life.running(words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 30, "all have a row")
        recreate(life, group, "view")
        tell(life.bootstrap, [event(group, 30)])
        wait(lambda: len(view_of(life.bootstrap, group)) == 31, "its rows come back while the job runs")
    recreate(life, group, "view")
    with life.running(words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 31, "its rows come back after a stop")
    recreate(life, group, "events")
    tell(life.bootstrap, [event(group, number) for number in range(100, 140)])  # more than the old one had
    with life.running(words) as wait:
        wait(lambda: len(view_of(life.bootstrap, group)) == 71, "every event of the new topic is in the view")
        recreate(life, group, "events", "view")
        tell(life.bootstrap, [event(group, number) for number in range(3)])
        wait(lambda: len(view_of(life.bootstrap, group)) == 3, "all three are another one")
        wait(
            lambda: life.committed(Names(group).events) == life.ends(Names(group).events),
            "how far it has read is committed",
        )
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
    labels = {"group": group, "topic": events}
    assert said.startswith(f"7 events of {events} were deleted before the view read them")
    assert life.metrics.registry.get_sample_value("reconsume_view_events_lost_total", labels) == 7


def said_of_seven_deleted_events(life: Life, group: str) -> str:
    """Stop the view after its first event, and delete the next seven before it goes on."""
    events = Names(group).events
    life.said.clear()
    tell(life.bootstrap, [event(group, 1)])
    with life.running(f"--groups={group}") as wait:
        wait(lambda: view_of(life.bootstrap, group), "the first has a row")
    tell(life.bootstrap, [event(group, number) for number in range(2, 9)])
    admin = AdminClient({"bootstrap.servers": life.bootstrap})
    parts = [TopicPartition(events, number, OFFSET_END) for number in life.ends(events)]
    for future in admin.delete_records(parts).values():
        future.result(SECONDS)
    with life.running(f"--groups={group}") as wait:
        wait(lambda: losses(life), "what was lost is told")
        wait(lambda: life.committed(events) == life.ends(events), "how far the view has read is committed")
    [said] = losses(life)
    return said


def losses(life: Life) -> list[str]:
    return [said for said in life.said if "were deleted before" in said or "the first offsets" in said]


METADATA = (b"\xff\xfe'}, \x00\n", b"', metadata='1 a b'}", b"", b"\xf0\x9f" * 500)


@pytest.mark.long
def test_a_position_whose_metadata_another_client_has_overwritten_counts_as_none_and_disturbs_no_other(
    life: Life,
) -> None:
    groups = [life.group(f"group-{number}") for number in range(len(METADATA) + 1)]
    for group in groups:
        tell(life.bootstrap, [event(group, number) for number in range(3)])
    words = f"--pattern={life.prefix}-.*"
    with life.running(words) as wait:
        wait(lambda: all(len(view_of(life.bootstrap, group)) == 3 for group in groups), "each has its rows")
        wait(lambda: all(read_whole(life, group) for group in groups), "how far it has read is committed")
    for group, metadata in zip(groups, METADATA, strict=False):
        for number, end in life.ends(Names(group).events).items():
            commit_raw(life.bootstrap, Names(group).view_group, Names(group).events, number, end, metadata)
    for group in groups:
        tell(life.bootstrap, [event(group, 3)])
    with life.running(words) as wait:
        wait(lambda: all(len(view_of(life.bootstrap, group)) == 4 for group in groups), "each has its new row")
        wait(lambda: all(read_whole(life, group) for group in groups), "all positions are the job's again")
    written = [len(dump(life.bootstrap, Names(group).view)) for group in groups]
    assert written == [7] * len(METADATA) + [4], "only the groups whose position was overwritten are read again"


def read_whole(life: Life, group: str) -> bool:
    return life.committed(Names(group).events) == life.ends(Names(group).events)


class Lagging(Brokers):
    """Brokers that do not know the newest partition yet."""

    def partitions(self, readable: Collection[str], writable: Collection[str] = ()) -> list[PartitionName]:
        return super().partitions(readable, writable)[:-1]


@pytest.mark.long
def test_a_partition_that_appears_between_its_listing_and_the_start_ends_the_job_which_is_then_started_again(
    life: Life, spark: SparkSession
) -> None:
    group = life.group("growing")
    lagging = Lagging(spark, {"kafka.bootstrap.servers": life.bootstrap})
    with (
        life.running(f"--groups={group}", brokers=lagging) as wait,
        pytest.raises(JobError, match=r"TopicPartitions|ASSIG"),
    ):
        wait(lambda: False, "Spark has found one more partition")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_group_without_a_right_is_left_out_by_name_until_it_has_it_and_holds_up_no_other(spark: SparkSession) -> None:
    with guarded_kafka() as kafka:
        login = {f"kafka.{name}": value for name, value in kafka.login("spark").items() if "sasl.user" not in name}
        password = login.pop("kafka.sasl.password")
        login["kafka.sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="spark" password="{password}";'
        )
        life = Life(spark, kafka.bootstrap, login)
        good, poor, hidden = (life.group(name) for name in ("good", "poor", "hidden"))
        for group in (good, poor, hidden):
            kafka.allow("spark", [right(Names(group).events, "READ"), right(Names(group).view, "DESCRIBE")])
            tell(kafka.bootstrap, [event(group, 1)])
        kafka.allow("spark", [right(Names(group).view, "WRITE") for group in (good, hidden)])
        kafka.allow("spark", [right(Names(group).view_group, "READ", "group") for group in (good, poor)])
        with life.running(f"--groups={good},{poor},{hidden}") as wait:
            wait(lambda: view_of(kafka.bootstrap, good), "the group with all rights has its row")
            assert f"{poor} is not served: this user has no right to WRITE {Names(poor).view}" in life.said
            assert any(f"{hidden} is not served: " in said and "Group" in said for said in life.said)
        kafka.allow("spark", [right(Names(poor).view, "WRITE")])
        with life.running(f"--groups={good},{poor}") as wait:
            wait(lambda: view_of(kafka.bootstrap, poor), "with the right it has its row")


def right(name: str, operation: str, resource: str = "topic") -> Permission:
    return Permission(Resource(resource), name, Operation(operation))


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        pytest.param("127.0.0.1:1", "Kafka has not answered", marks=pytest.mark.long),
        ("nosuch.invalid:9092", "Failed to create new KafkaAdminClient"),
    ],
)
def test_brokers_that_do_not_answer_are_an_error_of_one_sentence(
    spark: SparkSession, bootstrap: str, says: str
) -> None:
    brokers = Brokers(spark, {"kafka.bootstrap.servers": bootstrap})
    with pytest.raises(UnansweredError, match=says) as raised:
        brokers.topics()
    assert "\n" not in str(raised.value)
    with pytest.raises(UnansweredError, match=says):
        brokers.committed(["billing-RETRY-VIEW"])
