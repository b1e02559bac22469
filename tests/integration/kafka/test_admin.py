"""The admin edge against a real broker: what is found, what is created, and how it says that nobody answers."""

from __future__ import annotations

import time
import uuid

import pytest

from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.kafka.admin.changes import CreateState, TopicAdmin
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import source_of
from reconsume.sidecar.kafka.client_check import property_faults
from reconsume.topics.names import Kind
from reconsume.topics.specs import TopicSpec
from tests.conftest import MakeTopic
from tests.support.deadline import SOON
from tests.support.kafka.broker import Broker


@pytest.fixture
def cluster(kafka: Broker) -> Cluster:
    return Cluster({"bootstrap.servers": kafka.bootstrap})


def fresh_spec(**changes: object) -> TopicSpec:
    spec = {"kind": Kind.DLQ, "partitions": 2, "replication": 1, "config": {"cleanup.policy": "delete"}}
    return TopicSpec(**{"name": f"a-{uuid.uuid4().hex[:12]}", **spec, **changes})  # type: ignore[arg-type]


def test_a_topic_is_found_with_its_partitions_replicas_and_settings(cluster: Cluster, make_topic: MakeTopic) -> None:
    name = make_topic(3, max_message_bytes=12345, cleanup_policy="compact")
    found = cluster.find_topics([name])[name]
    assert (found.partitions, found.replication) == (3, 1)
    assert found.config["max.message.bytes"] == "12345"
    assert found.config["cleanup.policy"] == "compact"


def test_an_absent_topic_is_left_out_and_not_created_by_asking(cluster: Cluster, make_topic: MakeTopic) -> None:
    here, absent = make_topic(), f"absent-{uuid.uuid4().hex}"
    assert set(cluster.find_topics([here, absent])) == {here}
    assert cluster.find_topics([absent]) == {}


def test_a_main_topic_gives_what_the_groups_topics_follow(cluster: Cluster, make_topic: MakeTopic) -> None:
    name = make_topic(2, max_message_bytes=2_000_000, min_insync_replicas=1)
    source = source_of(cluster.find_topics([name])[name])
    assert (source.name, source.partitions, source.max_message_bytes) == (name, 2, 2_000_000)
    assert (source.replication, source.min_insync_replicas) == (1, 1)


def test_a_topic_is_created_as_it_is_specified(cluster: Cluster) -> None:
    spec = fresh_spec(config={"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"})
    (result,) = TopicAdmin(cluster).create([spec])
    assert result.state is CreateState.CREATED
    found = cluster.find_topics([spec.name])[spec.name]
    assert found.partitions == 2
    assert {key: found.config[key] for key in spec.config} == spec.config


def test_a_topic_that_exists_is_no_failure(cluster: Cluster, make_topic: MakeTopic) -> None:
    (result,) = TopicAdmin(cluster).create([fresh_spec(name=make_topic())])
    assert result.state is CreateState.EXISTS


def test_one_refused_topic_does_not_keep_the_others_from_being_created(cluster: Cluster) -> None:
    good, bad = fresh_spec(), fresh_spec(replication=3)
    results = {result.name: result for result in TopicAdmin(cluster).create([bad, good])}
    assert results[good.name].state is CreateState.CREATED
    assert results[bad.name].state is CreateState.FAILED
    assert "3" in results[bad.name].error


def test_only_asking_creates_nothing(cluster: Cluster) -> None:
    good, bad = fresh_spec(), fresh_spec(replication=3)
    states = [result.state for result in TopicAdmin(cluster).create([good, bad], only_ask=True)]
    assert states == [CreateState.CREATED, CreateState.FAILED]
    assert cluster.find_topics([good.name]) == {}


def test_a_broker_that_is_away_is_one_sentence_and_no_long_wait() -> None:
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"no broker of 127\.0\.0\.1:1 answered within 8 s.*refused") as caught:
        Cluster({"bootstrap.servers": "127.0.0.1:1"}).find_topics(["orders"])
    assert time.monotonic() - began < SOON
    assert "\n" not in str(caught.value)


def test_a_property_that_librdkafka_does_not_know_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.pasword"):
        Cluster({"bootstrap.servers": "127.0.0.1:1", "sasl.pasword": "x"})


def test_every_property_that_librdkafka_refuses_is_reported() -> None:
    properties = {
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.pasword": "hunter2",
        "linger.ms": "soon",
        "security.protocol": "sasl",
        "sasl.password": "hunter2",
        "session.timeout.ms": "6000",
    }
    faults = property_faults(properties)
    assert [fault.split(":")[0] for fault in faults] == [
        "kafka.sasl.pasword",
        "kafka.linger.ms",
        "kafka.security.protocol",
    ]
    assert "hunter2" not in "".join(faults)
