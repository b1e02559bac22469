"""How requests to the cluster are awaited: what is asked again, what is accepted, and what an error says."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Connection, DeniedError

ABSENT, DENIED = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED


class Cluster:
    """Answers a request for a name with these in turn: error codes, or a value."""

    def __init__(self, **answers: list[int | str]) -> None:
        self.given = answers
        self.asked: list[tuple[str, ...]] = []

    def send(self, names: Collection[str]) -> dict[str, Future[Any]]:
        self.asked.append(tuple(names))
        return {name: self.answer(name) for name in names}

    def answer(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        given = self.given[name].pop(0)
        if isinstance(given, int):
            future.set_exception(KafkaException(KafkaError(given)))
        else:
            future.set_result(given)
        return future


@pytest.fixture(scope="module")
def connection() -> Connection:
    return Connection({"bootstrap.servers": "127.0.0.1:1"})


def ask(connection: Connection, cluster: Cluster, *accepted: int) -> tuple[dict[str, Any], dict[str, int]]:
    return connection.answers("topic {}".format, sorted(cluster.given), cluster.send, frozenset(accepted))


def test_one_request_for_all_and_another_for_what_passes_by_itself(connection: Connection) -> None:
    cluster = Cluster(a=["one"], b=[KafkaError.LEADER_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "two"])
    assert ask(connection, cluster) == ({"a": "one", "b": "two"}, {})
    assert cluster.asked == [("a", "b"), ("b",), ("b",)]


def test_nothing_is_sent_for_nothing(connection: Connection) -> None:
    cluster = Cluster()
    assert ask(connection, cluster) == ({}, {})
    assert cluster.asked == []


def test_an_accepted_refusal_is_part_of_the_answer_and_another_is_raised(connection: Connection) -> None:
    assert ask(connection, Cluster(a=["one"], b=[ABSENT]), ABSENT) == ({"a": "one"}, {"b": ABSENT})
    with pytest.raises(BrokerError, match=r"cannot ask for topic b: .*\(UNKNOWN_TOPIC_OR_PART\)"):
        ask(connection, Cluster(a=["one"], b=[ABSENT]))
    with pytest.raises(DeniedError, match="this user may not see topic b"):
        ask(connection, Cluster(a=["one"], b=[DENIED]), ABSENT)


def test_no_answer_names_the_brokers(connection: Connection) -> None:
    with pytest.raises(BrokerError, match=r"no broker of 127\.0\.0\.1:1 answered within 8 s"):
        ask(connection, Cluster(a=[KafkaError._TIMED_OUT]))


def test_a_client_that_never_answers_is_given_up(connection: Connection) -> None:
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        connection.answer(Future(), -0.9)
