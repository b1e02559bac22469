"""Where a query without a checkpoint begins, against a broker and without Spark: progress, `start`, and the events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reconsume.spark.consumer.brokers import Lookup
from reconsume.spark.consumer.offsets import PartitionName, Reach
from reconsume.spark.consumer.start import (
    Query,
    StartError,
    When,
    begin,
    handled_records,
    main_offsets,
    start_text,
)
from reconsume.spark.errors import NoAnswerError
from reconsume.topics.events import State, encode_event, event_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce

AT = 1_763_690_000_000


class World:
    """A group with one partition in each topic, and what a query of it finds."""

    def __init__(self, bootstrap: str) -> None:
        self.group: GroupTopics = create_group(fresh_group(bootstrap, delays=(1_000, 2_000)), partitions=1)
        self.client = {"bootstrap.servers": bootstrap}
        self.names, self.main = self.group.names, self.group.main
        self.one, self.two = self.group.levels

    def query(self, start: When = None, name: str = "ship", *, gated: bool = True) -> Query:
        query = Query(self.names, name, self.group.mains, start_text(start), gated=gated)
        return query._replace(main=main_offsets(self.lookup(), query))

    def lookup(self, *, gated: bool = True) -> Lookup:
        return Lookup(self.client, {**(self.group.levels if gated else {}), self.names.ready: 0})

    def begin(self, start: When = None, name: str = "ship", *, gated: bool = True) -> Reach:
        reach, _ = begin(self.lookup(gated=gated), self.client, self.query(start, name, gated=gated))
        return reach

    def state(self, offset: int, times: int, redrives: int = 0) -> RetryState:
        return RetryState(f"{self.main}:0:{offset}", self.main, times, redrives, AT, AT, AT, "LookupError")

    def copy(self, topic: str, offset: int, times: int, redrives: int = 0) -> None:
        headers = tuple(render_retry_headers(self.state(offset, times, redrives), self.names.group, topic))
        produce(self.group.bootstrap, topic, [Out(b"v", b"k", headers)])

    def event(self, offset: int, times: int, state: State = State.WAITING_RETRY, redrives: int = 0) -> None:
        told = self.state(offset, times, redrives)
        event = event_of(told, state, None, group=self.names.group, instance="spark/ship", at=AT)
        produce(self.group.bootstrap, self.names.events, [Out(encode_event(event), told.id.encode(), partition=0)])

    def committed(self, name: str = "ship") -> dict[PartitionName, int]:
        at = [(topic, 0) for topic in (self.main, *self.group.retries)]
        return self.lookup().committed(self.names.spark_group(name), at)


@pytest.fixture
def world(kafka: Broker) -> World:
    return World(kafka.bootstrap)


def test_a_new_group_needs_no_start_and_has_its_progress_from_then_on(world: World) -> None:
    produce(world.group.bootstrap, world.main, [b"1", b"2"])
    assert world.begin().next == {(topic, 0): 0 for topic in world.group.retries}
    assert world.committed() == {(topic, 0): 0 for topic in (world.main, *world.group.retries)}
    world.copy(world.one, 0, 1)
    assert world.begin().next[world.one, 0] == 0, "its own progress is enough: nothing was handled yet"


@pytest.mark.parametrize("trace", ["level", "ready", "dlq", "main group", "retry group"])
def test_a_group_that_has_worked_needs_a_start_by_whatever_it_is_known(world: World, trace: str) -> None:
    produce(world.group.bootstrap, world.main, [b"1", b"2"])
    topics = {"level": world.two, "ready": world.names.ready, "dlq": world.group.dlq}
    if trace in topics:
        produce(world.group.bootstrap, topics[trace], [b"x"])
    else:
        of_group = {"main group": (world.names.group, world.main), "retry group": (world.names.retry_group, world.one)}
        consumer_group, topic = of_group[trace]
        world.lookup().commit(consumer_group, {(topic, 0): 0})
    known = topics.get(trace) or f"consumer group {of_group[trace][0]}"
    with pytest.raises(StartError, match=f'the query "ship" has no progress .*{known}.* start=: write "earliest"'):
        world.begin()
    assert world.committed() == {}, "nothing is written"
    world.begin("now")
    assert world.committed()[world.main, 0] == 2


def test_a_relays_own_progress_in_its_levels_is_no_trace_of_a_consumer(world: World) -> None:
    world.lookup().commit(world.names.retry_group, {(world.one, 0): 0})
    assert world.begin(gated=False).next == {(world.names.ready, 0): 0}


def test_what_start_says_decides_about_main_topics(world: World) -> None:
    times = [AT, AT + 1_000, AT + 2_000]
    produce(world.group.bootstrap, world.main, [Out(b"v", timestamp=at) for at in times])
    at = datetime.fromtimestamp(AT / 1000 + 0.5, UTC)
    for start, offset in {
        "earliest": 0,
        "now": 3,
        at: 1,
        at.isoformat(): 1,
        "2025-11-21T01:53:22Z": 2,
        "2030-01-01T00:00:00+01:00": 3,
    }.items():
        assert world.query(start).main == {(world.main, 0): offset}, start  # type: ignore[arg-type]


def test_with_progress_a_start_has_no_effect_and_another_querys_progress_is_taken_over_where_asked(
    world: World,
) -> None:
    produce(world.group.bootstrap, world.main, [b"1", b"2", b"3"])
    produce(world.group.bootstrap, world.one, [b"x"] * 4)
    world.lookup().commit(world.names.spark_group("ship"), {(world.main, 0): 1, (world.one, 0): 2})
    for start in (None, "now", "earliest", "after:nobody"):
        assert world.query(start).main == {(world.main, 0): 1}
        assert world.begin(start).next[world.one, 0] == 2
    assert world.query("after:ship", "other").main == {(world.main, 0): 1}
    assert world.begin("after:ship", "other").next[world.one, 0] == 2
    assert world.committed("other")[world.main, 0] == 1
    with pytest.raises(StartError, match="-SPARK-nobody has no progress"):
        world.begin("after:nobody", "third")


def test_progress_of_a_topic_that_was_made_anew_is_not_believed(world: World) -> None:
    produce(world.group.bootstrap, world.main, [b"1"])
    world.lookup().commit(world.names.spark_group("ship"), {(world.main, 0): 7, (world.one, 0): 7})
    assert world.query().main == {(world.main, 0): 0}
    assert world.begin().next[world.one, 0] == 0
    assert world.committed() == {(topic, 0): 0 for topic in (world.main, *world.group.retries)}


def test_copies_are_left_out_by_the_events_and_whatever_waits_is_taken(world: World) -> None:
    """In one level: handled ones before, between and behind those that wait; hops, redrives and unreadable records."""
    world.copy(world.one, 1, 1)  # 0: retried since
    for times in (1, 2):
        world.event(1, times)
    world.copy(world.two, 1, 2)  # it waits in the other level
    world.copy(world.one, 2, 1)  # 1: it waits
    world.event(2, 1)
    world.copy(world.one, 3, 1)  # 2: succeeded since
    world.event(3, 1)
    world.event(3, 1, State.COMMIT)
    world.copy(world.one, 4, 1)  # 3: hopped into the other level, where it waits
    world.event(4, 1)
    world.copy(world.two, 4, 1)
    world.copy(world.one, 5, 3)  # 4: dead
    world.event(5, 3)
    world.event(5, 3, State.DLQ)
    produce(world.group.bootstrap, world.one, [b"no headers"])  # 5
    world.copy(world.one, 6, 1)  # 6: held: no event tells of it
    world.copy(world.one, 5, 1, 1)  # 7: redriven and failed again, and it waits
    world.event(5, 0, State.REDRIVEN, 1)
    world.event(5, 1, redrives=1)
    world.copy(world.names.ready, 7, 0, 1)  # redriven, and it waits
    world.event(7, 0, State.REDRIVEN, 1)
    world.copy(world.names.ready, 8, 0, 1)  # redriven, and it succeeded
    world.event(8, 0, State.REDRIVEN, 1)
    world.event(8, 0, State.COMMIT, 1)
    reach = world.begin("now")
    assert reach.next == {(world.one, 0): 1, (world.two, 0): 0, (world.names.ready, 0): 0}
    assert reach.skips == {(world.one, 0): [(2, 5)], (world.names.ready, 0): [(1, 2)]}


def test_main_records_that_have_failed_are_left_out_until_their_events_are_gone(world: World) -> None:
    produce(world.group.bootstrap, world.main, [b"v"] * 5)
    world.event(1, 1)
    world.event(3, 1)
    world.event(3, 1, State.DLQ)
    query = world.query("earliest")
    assert handled_records(world.lookup(), world.client, query, query.main) == {(world.main, 0): [1, 3]}
    begin(world.lookup(), world.client, query)
    world.event(4, 1)  # by this query: it is known from the progress
    world.lookup().commit(query.private_group, {(world.main, 0): 2})
    again = world.query()
    assert handled_records(world.lookup(), world.client, again, again.main) == {(world.main, 0): [3]}
    late = world.query("now", "other")
    assert handled_records(world.lookup(), world.client, late, late.main) == {}


@pytest.mark.parametrize(
    "start", ["", "Earliest", "after:", "2026-11-30T06:00:00", "tomorrow", datetime(2026, 11, 30), 7, "at:5"]
)
def test_what_is_no_start_is_refused_with_what_may_be_written(start: Any) -> None:
    with pytest.raises(ValueError, match='is not a start: write "earliest", "now", "after:NAME"'):
        start_text(start)


def test_a_missing_main_topic_and_brokers_that_are_away_are_said(world: World) -> None:
    query = Query(world.names, "ship", (world.main, "absent"))
    with pytest.raises(StartError, match=r"main topics are missing.*: absent$"):
        main_offsets(world.lookup(), query)
    with pytest.raises(NoAnswerError, match=r"Kafka does not answer: no broker of 127\.0\.0\.1:9"):
        main_offsets(Lookup({"bootstrap.servers": "127.0.0.1:9"}, {}), query)
