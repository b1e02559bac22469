"""The doctor on what a group does: its progress, transactions, members, view and service."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from reconsume.sidecar.doctor.checks.progress import groups, progress
from reconsume.sidecar.doctor.checks.service import service
from reconsume.sidecar.doctor.checks.topics import topics as check_topics
from reconsume.sidecar.doctor.checks.topics import transactions
from reconsume.sidecar.doctor.findings import Status
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.topics.acls import GroupShape
from reconsume.topics.names import Names
from reconsume.topics.policy_record import InstanceHeard, SubscriptionRecord, instance_key, render_record
from tests.support.control_log import state_of
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.topic_io import SECONDS, Out, create_topic, dump, produce
from tests.support.service.listener import listener
from tests.support.service.service import Service
from tests.support.sidecar.doctoring import DAY, configured, now, worst
from tests.ui.members import is_assigned

# --- progress ------------------------------------------------------------------------------------------------------


def commit(topics: GroupTopics, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Leave a committed offset, as a group without members."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def told(at: int) -> ControlState:
    return state_of(InstanceHeard("pod-0", None), at=at)


def test_progress_expires_when_nobody_runs(cluster: Cluster, topics: GroupTopics, group: GroupShape) -> None:
    assert worst(progress(cluster, group, None)) == (Status.OK, "no progress is about to expire")
    commit(topics, topics.group, topics.main, 0)
    status, text = worst(progress(cluster, group, None))
    assert (status, f"{topics.group} has no running member" in text) == (Status.WARN, True)
    assert worst(progress(cluster, group, told(now() - 3 * DAY)))[0] is Status.WARN
    status, text = worst(progress(cluster, group, told(now() - 6 * DAY - DAY // 2)))
    assert (status, "since about 6d12h" in text) == (Status.FAIL, True)
    assert "at any time" in worst(progress(cluster, group, told(now() - 8 * DAY)))[1]


def test_progress_that_is_gone_although_there_are_events_is_a_failure(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    """Given a group that was deleted to clean up, or whose offsets expired, then doctor says what is read again."""
    produce(topics.bootstrap, topics.names.events, [Out(b"an event")])
    gone = (Status.FAIL, f"{topics.group} has no progress, although its events tell of deliveries")
    assert worst(progress(cluster, group, None)) == gone
    commit(topics, topics.group, topics.main, 0)
    assert worst(progress(cluster, group, None)) != gone


def test_a_topic_that_kafka_takes_for_the_same_is_found(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    dotted = replace(group, names=Names(f"{topics.group}.x"))
    create_topic(topics.bootstrap, f"{topics.group}_x-DLQ")
    found = [one.finding for one in check_topics(cluster, dotted, lambda _spec, _topic: ())]
    text = f"{topics.group}.x-DLQ cannot exist beside {topics.group}_x-DLQ: they differ only by `.` and `_`"
    assert [one for one in found if one.startswith(text)]


def test_records_that_are_deleted_unread_are_a_failure(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    produce(topics.bootstrap, topics.main, [Out(b"v", partition=0)] * 5)
    commit(topics, topics.group, topics.main, 2)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    (future,) = admin.delete_records([TopicPartition(topics.main, 0, 4)]).values()
    future.result(SECONDS)
    status, text = worst(progress(cluster, group, told(now())))
    assert (status, f"2 offsets of {topics.main}[0]" in text and "deleted" in text) == (Status.FAIL, True)


def test_unread_records_near_the_end_of_their_retention_are_a_warning(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    configured(topics.bootstrap, topics.main, "retention.ms", str(10 * DAY))
    old, new = now() - 9 * DAY - DAY // 2, now()
    records = [Out(b"v", partition=0, timestamp=at) for at in (old, old, old, new)]
    produce(topics.bootstrap, topics.main, records)
    commit(topics, topics.group, topics.main, 1)
    found = [found.finding for found in progress(cluster, group, told(now())) if "unread" in found.finding]
    assert found == [f"{topics.group}: at most 2 offsets of {topics.main}[0] are deleted unread within 1d"]
    commit(topics, topics.group, topics.main, 3)
    assert not any("unread" in found.finding for found in progress(cluster, group, told(now())))


# --- transactions --------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_older_than_it_may_be_hangs(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": f"{topics.group}-t"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topics.names.events, b"new", partition=0)
    producer.flush(SECONDS)
    assert worst(transactions(cluster, group, 10_000, pause=lambda _: None))[0] is Status.OK
    producer.produce(topics.dlq, b"old", partition=0, timestamp=now() - DAY)  # the broker keeps a producer's time there
    producer.flush(SECONDS)
    status, text = worst(transactions(cluster, group, 10_000, pause=lambda _: None))
    assert status is Status.FAIL
    assert text.startswith(f"{topics.dlq}[0]: open at offset 0 for more than 30s")
    # What ends while the doctor looks again does not hang.

    def end(_seconds: float) -> None:
        producer.commit_transaction(SECONDS)
        until(lambda: len(dump(topics.bootstrap, topics.dlq)) == 1, SECONDS, "both are committed")

    assert worst(transactions(cluster, group, 10_000, pause=end))[0] is Status.OK


# --- groups --------------------------------------------------------------------------------------------------------


@contextmanager
def member(topics: GroupTopics, group: str, topic: str) -> Iterator[None]:
    """A member of a group that reads a topic."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group, "client.id": "stranger"})
    consumer.subscribe([topic])
    try:
        until(lambda: is_assigned(consumer), SECONDS, f"{group} reads {topic}")
        yield
    finally:
        consumer.close()


def test_a_stranger_in_the_groups_own_place_is_found(cluster: Cluster, topics: GroupTopics, group: GroupShape) -> None:
    create_topic(topics.bootstrap, f"{topics.main}-other")
    with member(topics, topics.group, f"{topics.main}-other"):
        status, text = worst(groups(cluster, group))
    assert (status, "stranger" in text, f"{topics.main}-other" in text) == (Status.FAIL, True, True)


# --- instances, view, service ----------------------------------------------------------------------------------------


def test_the_policy_topic_is_read_with_the_times_of_its_records(cluster: Cluster, topics: GroupTopics) -> None:
    log = ControlLog(cluster, topics.names)
    assert log.read().beats.known() == {}
    value = SubscriptionRecord({topics.main: "*"}, 5)
    before = now()
    produce(topics.bootstrap, topics.names.policy, [Out(render_record(value), instance_key("pod-1"), timestamp=77)])
    beats = log.read().beats
    assert beats.known() == {"pod-1": value}
    assert before <= (beats.last_at or 0) <= now(), "the broker's, whatever a writer says"
    assert ControlLog(cluster, fresh_group(topics.bootstrap).names).read_if_there() is None


def unwell(connection: socket.socket) -> None:
    assert connection.recv(1 << 16).startswith(b"GET /health HTTP/1.1\r\n")
    connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


def test_a_service_that_is_away_or_unwell_is_found(tmp_path: Path) -> None:
    away = service(Deliver(url="http://127.0.0.1:1/"))
    assert worst(away)[0] is Status.FAIL
    with Service(tmp_path / "ledger") as there, listener(unwell) as address:
        assert worst(service(Deliver(url=there.url)))[0] is Status.OK
        status, text = worst(service(Deliver(url=there.url, health_url=f"http://{address}/health")))
    assert (status, "answers 503" in text) == (Status.WARN, True), text
    assert worst(service(Deliver(mode="pull")))[0] is Status.OK
