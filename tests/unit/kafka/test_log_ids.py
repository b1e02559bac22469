"""The ids of logs: what Kafka tells of them, and that nothing is said where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.consumer.log_checks import NO_ID, KafkaLogIds

UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
SILENT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def future(answer: object) -> Future[Any]:
    made: Future[Any] = Future()
    made.set_exception(answer) if isinstance(answer, Exception) else made.set_result(answer)
    return made


class Cluster:
    """In the place of an admin client. `ids`: of its topics, or what it answers instead."""

    def __init__(self, ids: Mapping[str, object], cluster: object = "cluster-1") -> None:
        self.ids, self.cluster, self.made = dict(ids), cluster, 0

    def connect(self) -> Connection:
        self.made += 1
        return cast("Connection", SimpleNamespace(client=self, answer=lambda asked, _within: asked.result()))

    def describe_cluster(self, request_timeout: float) -> Future[Any]:
        del request_timeout
        is_refused = isinstance(self.cluster, Exception)
        return future(self.cluster if is_refused else SimpleNamespace(cluster_id=self.cluster))

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        del topics, request_timeout
        return {
            name: future(ident if isinstance(ident, Exception) else SimpleNamespace(topic_id=ident))
            for name, ident in self.ids.items()
        }


def test_each_topic_has_a_log_of_its_own_and_what_kafka_does_not_tell_is_left_out() -> None:
    cluster = Cluster({"orders": "id-1", "bills": "id-2", "gone": UNKNOWN, "old": NO_ID})
    ask = KafkaLogIds(cluster.connect)
    assert ask(["orders", "bills", "gone", "old"]) == {
        "orders": LogId.of("cluster-1", "id-1"),
        "bills": LogId.of("cluster-1", "id-2"),
    }
    assert ask(["orders"])["orders"] != ask(["bills"])["bills"]
    assert cluster.made == 1, "one client serves all questions"


@pytest.mark.parametrize("cluster", [Cluster({"orders": SILENT}), Cluster({"orders": "id-1"}, SILENT)])
def test_where_kafka_does_not_answer_nothing_is_known_and_the_next_question_has_another_client(
    cluster: Cluster,
) -> None:
    ask = KafkaLogIds(cluster.connect)
    assert (ask(["orders"]), ask(["orders"]), cluster.made) == ({}, {}, 2)
    cluster.ids, cluster.cluster = {"orders": "id-1"}, "cluster-1"
    assert ask(["orders"]) == {"orders": LogId.of("cluster-1", "id-1")}


def test_where_no_client_can_be_made_nothing_is_known() -> None:
    """While certificates are rotated two files may not match."""

    def refuse() -> Connection:
        raise ConfigError(["kafka: no certificate"])

    assert KafkaLogIds(refuse)(["orders"]) == {}


def test_without_topics_nobody_is_asked() -> None:
    cluster = Cluster({})
    assert (KafkaLogIds(cluster.connect)([]), cluster.made) == ({}, 0)
