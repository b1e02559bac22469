"""In a cluster that takes long to answer, silence never means that a topic is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.group_policy import follower as followers
from reconsume.sidecar.group_policy.follower import LARGE_CLUSTER, ClusterTopics, PolicyFollower, PolicySource
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.target_topics import State, Targets
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.topics.names import Names
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

SLOW = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def topic(partitions: int, code: int | None = None) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(partitions=dict.fromkeys(range(partitions)), error=error)


class Cluster:
    """A client of a cluster: `slow` are the topics of which no answer comes in time, None among them: of all."""

    def __init__(self, topics: Mapping[str, Any], slow: Iterable[str | None] = ()) -> None:
        self.topics, self.slow = dict(topics), set(slow)
        self.asked: list[str | None] = []

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        del timeout
        self.asked.append(topic)
        if topic in self.slow:
            raise SLOW
        found = self.topics if topic is None else {topic: self.topics.get(topic, UNKNOWN)}
        return SimpleNamespace(topics=found)


UNKNOWN = topic(0, KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_what_kafka_does_not_tell_is_neither_there_nor_absent() -> None:
    cluster = Cluster({"a": topic(3), "c": topic(0, KafkaError.LEADER_NOT_AVAILABLE), "z": topic(1)}, slow=["y"])
    told = named_topics(cluster, ["a", "b", "c", "y", "z"], 1.0)
    assert (set(told.described), told.absent) == ({"a"}, frozenset({"b"}))
    assert cluster.asked == ["a", "b", "c", "y"], "after the first silence nothing more is asked"


class Silent:
    """In the place of a producer: Kafka tells nothing of topics yet."""

    def __init__(self) -> None:
        self.found: dict[str, list[State]] = {}

    def look_up_topics(self, names: Iterable[str], whole: float = 0.0) -> Targets:
        return Targets({name: self.found[name] for name in names if name in self.found}, frozenset())


def test_copies_wait_for_a_slow_answer_and_none_is_refused_for_it() -> None:
    config = producer_config({"bootstrap.servers": "127.0.0.1:1"}, "t", "c")
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    silent = Silent()
    supply.producer = cast("Any", silent)
    entries = [SettledRecord(record(0), Commit(None), (Copy("level", None, b"", [], 1),))]
    assert supply.targets.look_up_unlisted(entries)
    assert supply.targets.missing_targets(entries) == (), "nothing says that it is missing"
    silent.found["level"] = [State(0, 1)]
    supply.targets._looked_at = -1e9  # more than a second ago
    assert not supply.targets.look_up_unlisted(entries)
    assert supply.targets.partitions == {"level": 1}


def test_a_producer_that_asks_for_a_topic_does_not_create_it() -> None:
    config = producer_config({"bootstrap.servers": "b:1", "allow.auto.create.topics": "true"}, "t", "c")
    assert config["allow.auto.create.topics"] is False


NAMES = Names("billing")
NEEDED = frozenset({NAMES.policy, "orders"})


class Listening:
    """In the place of the desk, whose newest policy lacks a queue topic; and of what writes heartbeats."""

    def __init__(self) -> None:
        self.looks: list[Any] = []

    def wanted(self) -> frozenset[str]:
        return frozenset()

    def awaited(self) -> frozenset[str]:
        return frozenset({"billing-ORDERED-orders"})

    def on_update(self, news: Any) -> None:
        self.looks.append(news.look)

    def tell(self) -> None:
        """Nothing."""


def following() -> ClusterTopics:
    return ClusterTopics(NAMES.policy)


@pytest.mark.parametrize("slow", [[None], []])
def test_a_large_cluster_is_listed_once_and_then_asked_by_name(slow: list[str | None]) -> None:
    many = {f"t-{number}": topic(LARGE_CLUSTER // 10) for number in range(11)}
    cluster = Cluster(many | {NAMES.policy: topic(1), "orders": topic(2)}, slow)
    follower = following()
    for _ in range(3):
        counts = follower.ask(cast("Any", cluster), NEEDED)
        assert {name: counts[name] for name in NEEDED} == {NAMES.policy: 1, "orders": 2}
    assert cluster.asked.count(None) == 1
    assert len(cluster.asked) <= 1 + 3 * len(NEEDED)


def test_a_topic_that_a_policy_awaits_is_seen_at_the_next_look_in_a_large_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a queue topic that `topics apply` makes after the list of that hour."""
    queue, listener = "billing-ORDERED-orders", Listening()
    cluster = Cluster({f"t-{number}": topic(LARGE_CLUSTER // 10) for number in range(11)} | {NAMES.policy: topic(1)})
    source = PolicySource(NAMES, ("orders",), cast("Any", None))
    follower = PolicyFollower({}, {}, cast("Any", source), cast("Any", listener))
    monkeypatch.setattr(followers, "leftover_levels", lambda *_: None)
    monkeypatch.setattr(ClusterTopics, "offsets", lambda *_: None)
    monkeypatch.setattr(follower, "_begin", lambda _client, *, has_notes: None)
    monkeypatch.setattr(follower, "_heartbeat", Listening())
    follower._look(cast("Any", cluster))
    cluster.topics[queue] = topic(1)
    follower._look(cast("Any", cluster))
    assert [queue in look.topics for look in listener.looks] == [False, True]


def test_a_small_cluster_is_listed_at_each_look_for_its_levels_that_are_not_needed() -> None:
    cluster = Cluster({NAMES.policy: topic(1), "billing-RETRY-9m": topic(1)})
    follower = following()
    for _ in range(2):
        assert "billing-RETRY-9m" in follower.ask(cast("Any", cluster), NEEDED)
    assert cluster.asked == [None, None]


def test_a_policy_topic_of_which_nothing_is_known_is_no_missing_one() -> None:
    with pytest.raises(KafkaException):
        following().ask(cast("Any", Cluster({}, slow=[None, NAMES.policy])), NEEDED)
    assert followers.NAMED_WITHIN > 6.0, "seconds that a cluster of 200 000 partitions has taken"
