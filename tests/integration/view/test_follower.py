"""The thread that follows the view, on a real broker: what it takes in, how old it is, and what cannot stop it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.view.follower import CopyStatus, ViewFollower
from reconsume.sidecar.view.query import questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import VIEW_RETENTION
from reconsume.topics.view_position import as_java_prints, render_position
from reconsume.topics.view_record import ViewRow, encode_row
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.raw_commit import commit_bytes
from tests.support.kafka.topic_io import Out, delete_topics, dump, produce
from tests.support.kafka.view_topics import commit_as_job, create_view_topics, event, summed, tell
from tests.support.view_rows import HOSTILE, out, view_row, wall

SECONDS = 30.0
CHECK_EVERY = 0.5
Follow = Callable[..., ViewFollower]


@pytest.fixture
def follow(kafka: Broker, group: str) -> Iterator[Follow]:
    """`follow(folder=None)`: a thread that follows the group's view, and is always stopped."""
    threads: list[ViewFollower] = []

    def start(folder: Path | None = None, bootstrap: str = kafka.bootstrap) -> ViewFollower:
        servers = {"bootstrap.servers": bootstrap}
        threads.append(ViewFollower(servers, Names(group), folder, "t", CHECK_EVERY, source=Source.SPARK))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        end(thread)


@pytest.fixture
def names(kafka: Broker, group: str) -> Names:
    """The group's events, view and sums exist."""
    return create_view_topics(kafka.bootstrap, group)


@pytest.fixture
def write(kafka: Broker, group: str) -> Callable[..., None]:
    """`write(row, …)`: as the Spark job does."""

    def writes(*rows: ViewRow | Out) -> None:
        for row in rows:
            produce(kafka.bootstrap, Names(group).view, [row if isinstance(row, Out) else out(row)])

    return writes


def end(thread: ViewFollower) -> None:
    thread.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()


def message(thread: ViewFollower, key: str) -> bytes | None:
    seen = thread.status
    if seen.path is None or not seen.path.exists():
        return None
    with questions(seen.path) as query:
        return query.message(key)


def has(thread: ViewFollower, row: ViewRow) -> bool:
    return message(thread, row.id) == encode_row(row)


def known(thread: ViewFollower) -> CopyStatus:
    """What is seen once the view was read to its end."""
    return (
        until(lambda: thread.status if thread.status.as_of is not None else None, SECONDS, "it is known")
        or thread.status
    )


def test_rows_sums_and_tombstones_reach_the_file(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    first = view_row(1, group=group)
    write(first)
    tell(kafka.bootstrap, [event(group, 1), event(group, 2, State.DLQ)])
    commit_as_job(kafka.bootstrap, names)
    thread = follow()
    seen = known(thread)
    assert has(thread, first)
    assert seen.path is not None
    until(lambda: not thread.status.problem, SECONDS, "nothing is wrong")
    with questions(seen.path) as query:
        sums = [json.loads(row) for row in query.sums(0, 10).values]
    assert sorted(sums, key=str) == sorted(summed(dump(kafka.bootstrap, names.events)).values(), key=str)
    dead = view_row(1, State.DLQ, group=group, times=2)
    write(dead, first)  # a late repeat of the older state changes nothing
    until(lambda: has(thread, dead), SECONDS, "the newer state is there")
    write(Out(None, first.id.encode()), view_row(2, group=group))
    until(lambda: message(thread, "orders:0:2"), SECONDS, "what follows is there")
    until(lambda: message(thread, first.id) is None, SECONDS, "the tombstone is heeded")


def test_hostile_records_are_counted_and_stop_nothing(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    other = Out(encode_row(view_row(1, group="other")), b"orders:0:1")
    foreign = Out(encode_row(view_row(1, group=group)), b"orders:0:2")
    keyed = [record for record in HOSTILE if record.key is not None]  # a compacted topic takes no other
    produce(kafka.bootstrap, names.view, [Out(*record[:2], partition=0) for record in (*keyed, other, foreign)])
    produce(kafka.bootstrap, names.events, [*keyed, Out(b"{}", b"orders:0:1")])
    good = view_row(7, group=group)
    produce(kafka.bootstrap, names.view, [Out(*out(good)[:2], partition=0)])
    thread = follow()
    until(lambda: has(thread, good), SECONDS, "what follows them is read")
    wanted = {Kind.VIEW: len(keyed) + 2, Kind.EVENTS: len(keyed) + 1}
    until(lambda: thread.status.bad == wanted, SECONDS, "all are counted")
    assert message(thread, "orders:0:1") is None


def test_what_a_transaction_took_back_is_never_seen(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{group}-t"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    lie = out(view_row(1, State.DLQ, group=group, times=9))
    producer.produce(names.view, lie.value, lie.key)
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    truth = view_row(1, group=group)
    write(truth)
    thread = follow()
    known(thread)
    assert has(thread, truth)


def test_a_missing_view_and_one_that_was_never_written_say_so(
    kafka: Broker, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    thread = follow()
    until(lambda: "missing, or not for this user" in thread.status.problem, SECONDS, "it says that there is none")
    create_view_topics(kafka.bootstrap, group)
    until(lambda: "nothing was ever written" in thread.status.problem, SECONDS, "it says that it is empty")
    assert thread.status.as_of is None
    row = view_row(1, group=group)
    write(row)
    known(thread)
    assert has(thread, row)


def test_while_spark_catches_up_it_is_as_old_as_the_oldest_event_that_spark_has_not_read(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    tell(kafka.bootstrap, [event(group, 1)])
    write(view_row(1, group=group))
    commit_as_job(kafka.bootstrap, names)
    thread = follow()
    read = known(thread).as_of or 0
    until(lambda: (thread.status.as_of or 0) > read, SECONDS, "all is read")
    tell(kafka.bootstrap, [event(group, 2)])  # an outage of the job begins
    unread = wall()
    until(lambda: wall() - unread > 3_000, SECONDS, "time passes")
    tell(kafka.bootstrap, [event(group, 3)])
    row = view_row(3, group=group)
    write(row)  # the first batch after the outage: newer than every event, and not all of them
    until(lambda: has(thread, row), SECONDS, "the row is there")
    written = wall()
    until(lambda: wall() - written > 3 * 1_000 * CHECK_EVERY, SECONDS, "some looks have passed")
    assert (thread.status.as_of or 0) <= unread
    commit_as_job(kafka.bootstrap, names)
    until(lambda: (thread.status.as_of or 0) > written, SECONDS, "it has caught up")


def test_rows_make_nothing_newer_before_the_job_says_how_far_it_is(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    """Given rows that look newer than every event, and no position of the job, then the view is as old as the oldest
    event, whatever the rows' own times say."""
    tell(kafka.bootstrap, [event(group, 1)])
    unread = wall()
    until(lambda: wall() - unread > 2_000, SECONDS, "time passes")
    write(view_row(1, group=group))
    thread = follow()
    assert (known(thread).as_of or 0) <= unread
    commit_as_job(kafka.bootstrap, names)
    until(lambda: (thread.status.as_of or 0) > unread + 2_000, SECONDS, "it has caught up")


def test_with_nothing_unread_it_gets_newer_by_itself(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None]
) -> None:
    write(view_row(1, group=group))
    thread = follow()
    before = known(thread).as_of or 0
    until(lambda: (thread.status.as_of or 0) > before + 1_000, SECONDS, "it is as new as the last look")


FOREIGN = {
    "of another VIEW topic": lambda events, view: render_position(events, "another").encode(),
    "of another events topic": lambda events, view: render_position("another", view).encode(),
    "without text": lambda events, view: b"",
    "of another program": lambda events, view: b"committed by kcat at noon",
    "no UTF-8": lambda events, view: b"1 \xff\xfe \x00",
}


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=FOREIGN)
def test_a_position_that_is_not_the_jobs_about_these_topics_counts_as_none(
    kafka: Broker,
    names: Names,
    group: str,
    follow: Follow,
    write: Callable[..., None],
    metadata: Callable[[str, str], bytes],
) -> None:
    """Given a VIEW topic that was made anew while the job has not seen that yet, or bytes that anybody has committed,
    then the view is not called complete."""
    tell(kafka.bootstrap, [event(group, 1)])
    unread = wall()
    until(lambda: wall() - unread > 2_000, SECONDS, "time passes")
    write(view_row(1, group=group))
    commit_as_job(kafka.bootstrap, names)
    for number in partitions_of(kafka.bootstrap, names.events):
        commit_bytes(kafka.bootstrap, names.view_group, names.events, number, 99, metadata(*ids_of(kafka, names)))
    thread = follow()
    until(lambda: thread.status.as_of is not None, SECONDS, "it is read")
    assert (thread.status.as_of or 0) <= unread
    commit_as_job(kafka.bootstrap, names)
    until(lambda: (thread.status.as_of or 0) > unread + 2_000, SECONDS, "the job has read them into this one")


def ids_of(kafka: Broker, names: Names) -> tuple[str, str]:
    topics = Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics([names.events, names.view])
    return as_java_prints(topics[names.events].id), as_java_prints(topics[names.view].id)


def partitions_of(bootstrap: str, topic: str) -> list[int]:
    return list(AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, SECONDS).topics[topic].partitions)


def test_a_topic_that_was_made_anew_is_read_anew(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None], tmp_path: Path
) -> None:
    old, new = view_row(1, group=group), view_row(2, group=group)
    write(out(old)._replace(partition=0))
    thread = follow(tmp_path)
    known(thread)
    end(thread)
    delete_topics(kafka.bootstrap, names.view, names.events)
    create_view_topics(kafka.bootstrap, group)
    write(*(out(row)._replace(partition=0) for row in (view_row(3, group=group), new)))  # it is longer than the old one
    again = follow(tmp_path)
    until(lambda: has(again, new), SECONDS, "the new topic is read")
    assert message(again, "orders:0:3")
    assert message(again, old.id) is None


@pytest.mark.long
def test_a_restart_goes_on_where_the_file_ends(
    names: Names, group: str, follow: Follow, write: Callable[..., None], tmp_path: Path
) -> None:
    first, second = view_row(1, group=group), view_row(2, group=group)
    write(first)
    thread = follow(tmp_path)
    known(thread)
    end(thread)
    produced = thread.status
    write(second)
    again = follow(tmp_path, "127.0.0.1:1")
    until(lambda: again.status.as_of is not None, SECONDS, "what was known is served without Kafka")
    assert (again.status.as_of or 0) <= (produced.as_of or 0)
    assert has(again, first)
    until(lambda: "cannot be followed" in again.status.problem, SECONDS, "it says that Kafka is away")
    end(again)
    last = follow(tmp_path)
    until(lambda: has(last, second), SECONDS, "it goes on")
    assert has(last, first)


@pytest.mark.long
def test_what_leaves_the_topic_by_its_retention_leaves_the_file(
    kafka: Broker, names: Names, group: str, follow: Follow, write: Callable[..., None], tmp_path: Path
) -> None:
    old, new = view_row(1, group=group), view_row(2, group=group)
    # Behind newer ones in every partition: the broker deletes whole segments, and might come before us.
    write(new, *(view_row(number, group=group) for number in range(3, 40)))
    produce(kafka.bootstrap, names.view, [out(old)._replace(timestamp=wall() - VIEW_RETENTION - 60_000)])
    first = follow(tmp_path)
    known(first)
    assert has(first, old)
    end(first)
    again = follow(tmp_path)
    until(lambda: has(again, new) and message(again, old.id) is None, SECONDS, "it is dropped, and nothing else")


def test_a_fault_of_ours_does_not_end_the_thread(kafka: Broker, group: str, caplog: pytest.LogCaptureFixture) -> None:
    nameless: Any = object()
    thread = ViewFollower({"bootstrap.servers": kafka.bootstrap}, nameless, None, "t", source=Source.SPARK)
    thread.start()
    until(lambda: caplog.text.count("the view cannot be followed") > 1, SECONDS, "it has tried again")
    assert thread.is_alive()
    end(thread)


def damage(path: Path) -> None:
    """Overwrite all pages but the first."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


@pytest.mark.parametrize("harm", [Path.unlink, damage], ids=["lost", "broken"])
def test_a_file_that_is_lost_or_broken_is_rebuilt(
    harm: Callable[[Path], None], names: Names, group: str, follow: Follow, write: Callable[..., None], tmp_path: Path
) -> None:
    first, second = view_row(1, group=group), view_row(2, group=group)
    write(first)
    thread = follow(tmp_path)
    path = known(thread).path
    assert path is not None
    end(thread)  # so that what it wrote is in the file, and not in its log
    thread = follow(tmp_path)
    until(lambda: thread.status.path == path, SECONDS, "it is open")
    harm(path)
    write(second)
    until(lambda: readable(thread, first) and readable(thread, second), SECONDS, "all is there again")


def readable(thread: ViewFollower, row: ViewRow) -> bool:
    try:
        return has(thread, row)
    except sqlite3.Error:
        return False


def test_a_folder_that_cannot_be_written_is_said_and_tried_again(
    names: Names, group: str, follow: Follow, write: Callable[..., None], tmp_path: Path
) -> None:
    place = tmp_path / "taken"
    place.write_bytes(b"")
    row = view_row(1, group=group)
    write(row)
    thread = follow(place)
    until(lambda: "cannot be kept" in thread.status.problem, SECONDS, "it says so")
    place.unlink()
    known(thread)
    assert has(thread, row)
