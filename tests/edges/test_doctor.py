"""Each check of the doctor against a real broker: what is well is ok, and each fault is found and told apart."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.edges.admin import FoundTopic
from sidecar.edges.checkup.cluster import Cluster
from sidecar.edges.checkup.dead_view import dead_view
from sidecar.edges.checkup.findings import Finding, Report, Status
from sidecar.edges.checkup.hanging import hanging
from sidecar.edges.checkup.layout import layout
from sidecar.edges.checkup.progress import progress
from sidecar.edges.checkup.service import service
from sidecar.edges.checkup.sharing import sharing
from sidecar.edges.checkup.skew import skew
from sidecar.edges.checkup.told import Told, read_policy_topic
from sidecar.settings.deliver import Deliver
from tests.support.broker import Broker
from tests.support.cli import reconsume
from tests.support.deadline import until
from tests.support.kafka import SECONDS, Out, create_topic, dump, produce
from tests.support.listener import listener
from tests.support.service import Service
from tests.support.topics import GroupTopics, create_group, fresh_group, set_config
from topics.names import Kind
from topics.policy_record import InstanceHeard, SubscriptionRecord, instance_key, render_record
from topics.rights import Group
from topics.specs import TopicSpec

DAY = 86_400_000
DELAYS = (1_000,)


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module", autouse=True)
def warm(kafka: Broker) -> None:
    """The first group of a cluster has to wait for the topic of all groups; that is not what is tested here."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "warm"})

    def answered() -> bool:
        with suppress(KafkaException):
            consumer.committed([TopicPartition("warm", 0)], timeout=1.0)
            return True
        return False

    until(answered, 2 * SECONDS, "the cluster keeps offsets")
    consumer.close()


@pytest.fixture
def topics(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=DELAYS), also=(Kind.VIEW, Kind.STATS, Kind.POLICY))


@pytest.fixture
def group(topics: GroupTopics) -> Group:
    return Group(topics.names, topics.mains, topics.delays, view=True)


@pytest.fixture
def cluster(kafka: Broker) -> Cluster:
    return Cluster({"bootstrap.servers": kafka.bootstrap})


def worst(findings: Sequence[Finding]) -> tuple[Status, str]:
    report = Report("any", tuple(findings))
    return report.status, "; ".join(found.finding for found in report.bad)


def configured(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change a setting, and wait until the broker says so."""
    set_config(bootstrap, topic, name, value)
    cluster = Cluster({"bootstrap.servers": bootstrap})
    until(lambda: cluster.settings([topic])[topic][name] == value, SECONDS, f"{name} of {topic} is {value}")


def nothing(_spec: TopicSpec, _found: FoundTopic) -> list[tuple[str, str]]:
    return []


# --- the whole command ---------------------------------------------------------------------------------------------


def config(topics: GroupTopics, folder: Path, url: str, **more: object) -> Path:
    file = folder / "reconsume.yaml"
    tree = {
        "group": topics.group,
        "topics": list(topics.mains),
        "kafka": {"bootstrap.servers": topics.bootstrap},
        "deliver": {"url": url},
        "retry": {"ladder": ["1s"], "levels": ["1s"]},
        **more,
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return file


def test_all_is_well_with_a_fresh_group(topics: GroupTopics, tmp_path: Path) -> None:
    with Service(tmp_path / "ledger") as there:
        shown = reconsume("-c", config(topics, tmp_path, there.url), "doctor", "-o", "json")
    rows = json.loads(shown.stdout)
    assert {row["check"]: row["finding"] for row in rows if row["status"] != "ok"} == {}
    assert [row["check"] for row in rows][:4] == ["kafka", "service", "rights", "topics"]
    assert shown.exit_code == 0
    assert "11 checks: 0 failed" in shown.stderr


def test_what_fails_ends_with_1_and_has_a_line_and_a_mend(topics: GroupTopics, tmp_path: Path) -> None:
    configured(topics.bootstrap, topics.dlq, "cleanup.policy", "compact")
    shown = reconsume("-c", config(topics, tmp_path, "http://127.0.0.1:1/"), "doctor")
    rows = {row["check"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert shown.exit_code == 1
    assert {name for name, row in rows.items() if row["status"] == "fail"} == {"service", "topics"}
    assert rows["topics"]["finding"].startswith(f"{topics.dlq}: cleanup.policy is compact and must be delete")
    assert rows["topics"]["mend"].startswith("kafka-configs.sh --alter")
    assert [found["status"] for found in rows["topics"]["findings"]] == ["fail"]


def test_a_broker_that_hangs_is_one_failure_and_no_hang(topics: GroupTopics, tmp_path: Path) -> None:
    with listener(lambda connection: connection.recv(1 << 16)) as address:
        file = config(topics, tmp_path, "http://127.0.0.1:1/", deliver={"mode": "pull"})
        began = time.monotonic()
        shown = reconsume("-c", file, "doctor", "--set", f"kafka.bootstrap.servers={address}")
    rows = {row["check"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert shown.exit_code == 1
    assert [name for name, row in rows.items() if row["status"] == "fail"] == ["kafka"]
    assert "nobody answers" in rows["kafka"]["finding"]
    assert time.monotonic() - began < 20


# --- topics --------------------------------------------------------------------------------------------------------


def test_missing_topics_are_failures_unless_retries_go_on_without_them(kafka: Broker, cluster: Cluster) -> None:
    topics = fresh_group(kafka.bootstrap, delays=DELAYS)
    create_group(topics, leave_out=[topics.dlq])
    group = Group(topics.names, topics.mains, topics.delays)
    found = {found.finding: found.status for found in layout(cluster, group, nothing)}
    names = topics.names
    assert found == {
        f"{topics.dlq} does not exist": Status.FAIL,
        **{f"{name} does not exist": Status.WARN for name in (names.view, names.stats, names.policy)},
    }


def test_a_missing_main_topic_is_a_failure(cluster: Cluster, kafka: Broker) -> None:
    topics = fresh_group(kafka.bootstrap)
    status, text = worst(layout(cluster, Group(topics.names, topics.mains, topics.delays), nothing))
    assert (status, text) == (Status.FAIL, f"main topic {topics.main} does not exist")


# --- clocks --------------------------------------------------------------------------------------------------------


def test_the_clock_is_measured_and_nothing_is_left_for_readers(cluster: Cluster, topics: GroupTopics) -> None:
    (found,) = skew(cluster, topics.names)
    assert (found.status, "is within" in found.finding) == (Status.OK, True)
    assert hanging(cluster, Group(topics.names, topics.mains, topics.delays), 10_000)[0].status is Status.OK
    assert dump(topics.bootstrap, topics.names.ready) == []


# --- progress ------------------------------------------------------------------------------------------------------


def commit(topics: GroupTopics, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Leave a committed offset, as a group without members."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def told(at: int) -> tuple[Told, ...]:
    return (Told(InstanceHeard("pod-0", None), at),)


def test_progress_expires_when_nobody_runs(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    assert worst(progress(cluster, group, None)) == (Status.OK, "nothing is about to expire")
    commit(topics, topics.group, topics.main, 0)
    status, text = worst(progress(cluster, group, None))
    assert (status, f"{topics.group} has no running member" in text) == (Status.WARN, True)
    assert worst(progress(cluster, group, told(now() - 3 * DAY)))[0] is Status.WARN
    status, text = worst(progress(cluster, group, told(now() - 6 * DAY - DAY // 2)))
    assert (status, "since about 6d12h" in text) == (Status.FAIL, True)
    assert "at any time" in worst(progress(cluster, group, told(now() - 8 * DAY)))[1]


def test_records_that_are_deleted_unread_are_a_failure(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    produce(topics.bootstrap, topics.main, [Out(b"v", partition=0)] * 5)
    commit(topics, topics.group, topics.main, 2)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    (future,) = admin.delete_records([TopicPartition(topics.main, 0, 4)]).values()
    future.result(SECONDS)
    status, text = worst(progress(cluster, group, told(now())))
    assert (status, f"2 offsets of {topics.main}[0] were deleted" in text) == (Status.FAIL, True)


def test_unread_records_near_the_end_of_their_retention_are_a_warning(
    cluster: Cluster, topics: GroupTopics, group: Group
) -> None:
    configured(topics.bootstrap, topics.main, "retention.ms", str(10 * DAY))
    old, new = now() - 9 * DAY - DAY // 2, now()
    records = [Out(b"v", partition=0, timestamp=at) for at in (old, old, old, new)]
    produce(topics.bootstrap, topics.main, records)
    commit(topics, topics.group, topics.main, 1)
    found = [found.finding for found in progress(cluster, group, told(now())) if "unread" in found.finding]
    assert found == [f"{topics.group}: up to 2 offsets of {topics.main}[0] are deleted unread within 1d"]
    commit(topics, topics.group, topics.main, 3)
    assert not any("unread" in found.finding for found in progress(cluster, group, told(now())))


# --- transactions --------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_older_than_it_may_be_hangs(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": f"{topics.group}-t"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topics.names.events, b"new", partition=0)
    producer.flush(SECONDS)
    assert worst(hanging(cluster, group, 10_000, pause=lambda _: None))[0] is Status.OK
    producer.produce(topics.names.events, b"old", partition=1, timestamp=now() - DAY)
    producer.flush(SECONDS)
    status, text = worst(hanging(cluster, group, 10_000, pause=lambda _: None))
    assert status is Status.FAIL
    assert text.startswith(f"{topics.names.events}[1]: open at offset 0 for more than 30s")
    # What ends while the doctor looks again does not hang.

    def end(_seconds: float) -> None:
        producer.commit_transaction(SECONDS)
        until(lambda: len(dump(topics.bootstrap, topics.names.events)) == 2, SECONDS, "both are committed")

    assert worst(hanging(cluster, group, 10_000, pause=end))[0] is Status.OK


# --- groups --------------------------------------------------------------------------------------------------------


@contextmanager
def member(topics: GroupTopics, group: str, topic: str) -> Iterator[None]:
    """A member of a group that reads a topic."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group, "client.id": "stranger"})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) or consumer.assignment(), SECONDS, f"{group} reads {topic}")
    yield
    consumer.close()


def test_another_group_on_the_level_topics_is_found(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    level = topics.names.level(1_000, topics.main)
    commit(topics, topics.group, topics.main, 0)
    commit(topics, topics.names.retry_group, level, 0)
    assert worst(sharing(cluster, group))[0] is Status.OK
    with member(topics, f"look-{topics.group}", level):
        status, text = worst(sharing(cluster, group))
    assert (status, f"group look-{topics.group} reads {level}" in text) == (Status.WARN, True)
    commit(topics, f"other-{topics.group}-RETRY", level, 0)
    status, text = worst(sharing(cluster, group))
    assert (status, f"group other-{topics.group}-RETRY has read {level}" in text) == (Status.FAIL, True)


def test_a_stranger_in_the_groups_own_place_is_found(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    create_topic(topics.bootstrap, f"{topics.main}-other")
    with member(topics, topics.group, f"{topics.main}-other"):
        status, text = worst(sharing(cluster, group))
    assert (status, "stranger" in text, f"{topics.main}-other" in text) == (Status.FAIL, True, True)


# --- instances, view, service ----------------------------------------------------------------------------------------


def test_the_policy_topic_is_read_with_the_times_of_its_records(cluster: Cluster, topics: GroupTopics) -> None:
    assert read_policy_topic(cluster, topics.names) == ()
    value = SubscriptionRecord({topics.main: "*"}, 5)
    produce(topics.bootstrap, topics.names.policy, [Out(render_record(value), instance_key("pod-1"), timestamp=77)])
    assert read_policy_topic(cluster, topics.names) == (Told(InstanceHeard("pod-1", value), 77),)
    assert read_policy_topic(cluster, fresh_group(topics.bootstrap).names) is None


def test_a_view_that_is_older_than_the_events_is_dead(cluster: Cluster, topics: GroupTopics, group: Group) -> None:
    assert worst(dead_view(cluster, group)) == (Status.OK, "there are no events yet")
    produce(topics.bootstrap, topics.names.events, [Out(b"{}", timestamp=now())])
    assert worst(dead_view(cluster, group)) == (Status.FAIL, "there are events, and the view has never been written")
    produce(topics.bootstrap, topics.names.view, [Out(b"{}", b"id", timestamp=now() - 330_000)])
    assert "the newest event is 5m" in worst(dead_view(cluster, group))[1]
    produce(topics.bootstrap, topics.names.view, [Out(b"{}", b"id", timestamp=now())])
    assert worst(dead_view(cluster, group))[0] is Status.OK


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
