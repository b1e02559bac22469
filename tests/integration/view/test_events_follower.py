"""The view made from the events, on a real broker: it is the fold of the topic, whatever happens to either."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.view.follower import CopyStatus, ViewFollower
from reconsume.sidecar.view.query import Filters, questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State, encode_event
from reconsume.topics.names import Kind, Names
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, delete_topics, dump, produce
from tests.support.kafka.view_topics import create_view_topics, event, folded, summed, tell
from tests.support.view_rows import HOSTILE, wall

SECONDS = 30.0
CHECK_EVERY = 0.5
WATCH_EVERY = 0.5
Follow = Callable[..., ViewFollower]


@pytest.fixture
def follow(kafka: Broker, group: str) -> Iterator[Follow]:
    """`follow(folder=None, source=Source.EVENTS)`: a thread that follows the group's view, and is always stopped."""
    threads: list[ViewFollower] = []

    def start(folder: Path | None = None, source: Source = Source.EVENTS) -> ViewFollower:
        servers = {"bootstrap.servers": kafka.bootstrap}
        names = Names(group)
        thread = ViewFollower(servers, names, folder, "t", CHECK_EVERY, source=source)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        end(thread)


@pytest.fixture
def names(kafka: Broker, group: str) -> Names:
    return create_view_topics(kafka.bootstrap, group)


def end(thread: ViewFollower) -> None:
    thread.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()


def rows(thread: ViewFollower) -> dict[str, Any]:
    """The rows by id; none while there is no file."""
    return {row["id"]: row for row in asked(thread, lambda query: query.every_message(Filters()))}


def sums(thread: ViewFollower) -> dict[str, Any]:
    found = asked(thread, lambda query: query.every_sum(0))
    return {f"{row['minute']}|{row['topic']}|{row['level'] or ''}|{row['reason']}": row for row in found}


def asked(thread: ViewFollower, question: Callable[..., Any]) -> list[dict[str, Any]]:
    seen = thread.status
    try:
        if seen.path is None or not seen.path.exists():
            return []
        with questions(seen.path) as query:
            return [msgspec.json.decode(value) for value in question(query)]
    except sqlite3.Error:
        return []


def known(thread: ViewFollower) -> CopyStatus:
    return (
        until(lambda: thread.status if thread.status.as_of is not None else None, SECONDS, "it is known")
        or thread.status
    )


def life(group: str, number: int) -> list[Any]:
    """A record that fails twice and is done, one that is dead and redriven, told in no order and in part twice."""
    at = wall()
    fails = [event(group, number, times=times, at=at + times, first_failed_at=at) for times in (1, 2)]
    done = event(group, number, State.COMMIT, 2, at=at + 9, level=None, due=0, first_failed_at=at)
    dead = event(group, number + 1_000, State.DLQ, 1, at=at, level=None, due=0, first_failed_at=at)
    again = event(group, number + 1_000, State.REDRIVEN, 0, redrives=1, at=at + 5, level=None, due=0)
    return [done, fails[1], fails[0], fails[1], again, dead]


def test_the_copy_is_the_fold_of_the_topic_and_its_sums_row_by_row(
    kafka: Broker, names: Names, group: str, follow: Follow
) -> None:
    thread = follow()
    for number in range(20):
        tell(kafka.bootstrap, life(group, number))
    told = dump(kafka.bootstrap, names.events)
    until(lambda: rows(thread) == folded(told), SECONDS, "the rows are the fold")
    assert sums(thread) == summed(told)
    until(lambda: not thread.status.problem, SECONDS, "nothing is wrong")
    seen = thread.status
    assert (seen.source, seen.since, seen.shortfall) == (Source.EVENTS, 0, "")
    until(lambda: (thread.status.as_of or 0) > (seen.as_of or 0), SECONDS, "it gets newer by itself")


def test_no_event_is_an_empty_view_and_a_missing_topic_is_said(kafka: Broker, group: str, follow: Follow) -> None:
    thread = follow()
    until(lambda: "missing, or not for this user" in thread.status.problem, SECONDS, "it says that there is none")
    create_view_topics(kafka.bootstrap, group)
    assert known(thread).problem == ""
    assert rows(thread) == {}


def test_hostile_events_are_counted_and_stop_nothing(kafka: Broker, names: Names, group: str, follow: Follow) -> None:
    other = Out(encode_event(event("other", 1)), b"orders:0:1")
    ahead = Out(encode_event(event(group, 2, at=wall() + 3_600_000)), b"orders:0:2")
    later = Out(encode_event(event(group, 3)).replace(b'"v":1', b'"v":7'), b"orders:0:3")
    good = event(group, 7)
    bad = [Out(*record[:2], partition=0) for record in (*HOSTILE, other, ahead, later)]
    produce(kafka.bootstrap, names.events, [*bad, Out(encode_event(good), b"any key", partition=0)])
    thread = follow()
    until(lambda: list(rows(thread)) == [good.id], SECONDS, "what follows them is read, and they are not")
    until(lambda: thread.status.bad == {Kind.EVENTS: len(bad)}, SECONDS, "all are counted")


def test_what_a_transaction_took_back_is_never_seen(kafka: Broker, names: Names, group: str, follow: Follow) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{group}-t"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(names.events, encode_event(event(group, 1, State.DLQ, 9)), b"orders:0:1")
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    tell(kafka.bootstrap, [event(group, 1)])
    thread = follow()
    until(lambda: "orders:0:1" in rows(thread), SECONDS, "the truth is there")
    assert rows(thread)["orders:0:1"]["times"] == 1
    assert sum(row["dead"] for row in sums(thread).values()) == 0


def test_a_restart_goes_on_and_counts_nothing_twice(
    kafka: Broker, names: Names, group: str, follow: Follow, tmp_path: Path
) -> None:
    for number in range(3):
        tell(kafka.bootstrap, life(group, number))
        thread = follow(tmp_path)
        told = dump(kafka.bootstrap, names.events)
        until(lambda thread=thread, told=told: rows(thread) == folded(told), SECONDS, "the rows are the fold")
        assert sums(thread) == summed(told)
        end(thread)
    assert [path.name for path in tmp_path.glob("*/*.sqlite")] == [f"{group}-events-0.sqlite"]


def test_a_topic_that_was_made_anew_is_read_anew(
    kafka: Broker, names: Names, group: str, follow: Follow, tmp_path: Path
) -> None:
    tell(kafka.bootstrap, [event(group, 1)])
    thread = follow(tmp_path)
    until(lambda: rows(thread), SECONDS, "it is read")
    end(thread)
    delete_topics(kafka.bootstrap, names.view, names.events)
    create_view_topics(kafka.bootstrap, group)
    tell(kafka.bootstrap, [event(group, number) for number in range(2, 30)])  # it is longer than the old one
    again = follow(tmp_path)
    told = dump(kafka.bootstrap, names.events)
    until(lambda: rows(again) == folded(told), SECONDS, "the new topic is read, and nothing else is there")
    assert sums(again) == summed(told)
    assert again.status.since == 0


def test_it_says_since_when_it_is_complete(
    kafka: Broker, names: Names, group: str, follow: Follow, tmp_path: Path
) -> None:
    tell(kafka.bootstrap, [event(group, number) for number in range(40)])
    cut = wall()
    forget(kafka.bootstrap, names.events)
    tell(kafka.bootstrap, [event(group, number) for number in range(40, 60)])
    thread = follow(tmp_path)
    until(lambda: len(rows(thread)) == 20, SECONDS, "what is left is read")
    assert cut <= thread.status.since <= wall()
    since = thread.status.since
    end(thread)
    assert follow_since(follow(tmp_path)) == since, "a restart knows it"
    away = wall()
    tell(kafka.bootstrap, [event(group, number) for number in range(60, 90)])
    forget(kafka.bootstrap, names.events)  # read by nobody
    tell(kafka.bootstrap, [event(group, number) for number in range(90, 100)])
    again = follow(tmp_path)
    until(lambda: "orders:0:99" in rows(again), SECONDS, "it goes on")
    until(lambda: again.status.since >= away, SECONDS, "events are lacking that left while it was away")
    assert "orders:0:41" in rows(again)


def follow_since(thread: ViewFollower) -> int:
    known(thread)
    since = thread.status.since
    end(thread)
    return since


def forget(bootstrap: str, topic: str) -> None:
    """Delete all records of a topic, as its retention does."""
    with_ends = Consumer({"bootstrap.servers": bootstrap, "group.id": "any"})
    numbers = with_ends.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    ends = {n: with_ends.get_watermark_offsets(TopicPartition(topic, n), timeout=SECONDS)[1] for n in numbers}
    with_ends.close()
    places = [TopicPartition(topic, number, end) for number, end in ends.items() if end > 0]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its answers come only while it lives
    for done in admin.delete_records(places).values():
        done.result(SECONDS)
