"""A topic that the controller has made and the broker does not list yet is not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # re-exported without saying so

from reconsume.sidecar.kafka.admin.changes import CreateState, TopicAdmin
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.topics.names import Kind
from reconsume.topics.specs import TopicSpec

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def answer(code: int | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if code is None:
        future.set_result(None)
    else:
        future.set_exception(KafkaException(KafkaError(code)))
    return future


class LateBroker:
    """Creates topics, and lists each from the third question on. `hidden` are those that this user may not see."""

    def __init__(self, hidden: str = "") -> None:
        self.questions: list[list[str]] = []
        self._hidden = hidden

    def create_topics(self, new: Sequence[NewTopic], **_: object) -> Mapping[str, Future[Any]]:
        taken = KafkaError.TOPIC_ALREADY_EXISTS
        return {topic.topic: answer(taken if topic.topic == "old" else None) for topic in new}

    def describe_topics(self, topics: TopicCollection, **_: object) -> Mapping[str, Future[Any]]:
        names: list[str] = topics.topic_names
        self.questions.append(names)
        unknown = KafkaError.UNKNOWN_TOPIC_OR_PART if len(self.questions) < 3 else None
        return {
            name: answer(KafkaError.TOPIC_AUTHORIZATION_FAILED if name == self._hidden else unknown) for name in names
        }


def created(broker: LateBroker, *names: str, only_ask: bool = False) -> list[CreateState]:
    connection = Connection(NOBODY)
    connection.client = broker  # type: ignore[assignment]
    specs = [TopicSpec(name, Kind.LEVEL, 1, 1, {}) for name in names]
    return [result.state for result in TopicAdmin(connection).create(specs, only_ask=only_ask)]


def test_what_was_created_is_listed_when_create_returns() -> None:
    broker = LateBroker()
    assert created(broker, "new", "old") == [CreateState.CREATED, CreateState.EXISTS]
    assert broker.questions == [["new"]] * 3


def test_a_topic_that_this_user_may_not_see_is_waited_for_no_longer() -> None:
    broker = LateBroker(hidden="new")
    assert created(broker, "new") == [CreateState.CREATED]
    assert broker.questions == [["new"]]


def test_to_ask_alone_waits_for_nothing() -> None:
    broker = LateBroker()
    created(broker, "new", only_ask=True)
    assert broker.questions == []
