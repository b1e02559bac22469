"""The policy topic's thread, the looks at removed levels, and a consumer that is told to read other topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.group_policy.follower import PolicyFollower, PolicySource, PolicyUpdate
from reconsume.sidecar.group_policy.heartbeat import InstanceInfo
from reconsume.sidecar.group_policy.levels import Undrained, undrained_levels, unlisted_levels
from reconsume.sidecar.kafka.client_config import follower_config, teller_config
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup
from reconsume.topics.names import Names
from reconsume.topics.policy_record import Heard, PaceTold, PolicyHeard, SubscriptionRecord, instance_key
from tests.conftest import MakeTopic
from tests.integration.kafka.test_consumer import SECONDS, commit
from tests.support.deadline import until
from tests.support.kafka.broker import Broker, embedded
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, dump, produce

POLICY = json.dumps({"v": 1, "policy": {"max_deaths": 4}, "who": "x", "at": 1}).encode()


def heard_of(news: PolicyUpdate) -> list[Heard]:
    """What the records of an update say."""
    return [said.heard for said in news.records]


class Desk:
    """Notes the news. `hurry`: something is awaited."""

    def __init__(self) -> None:
        self.news: list[PolicyUpdate] = []
        self.hurry = False
        self.pace = PaceTold("open", 1)

    def on_update(self, news: PolicyUpdate) -> None:
        self.news.append(news)

    def wanted(self) -> frozenset[str]:
        return frozenset()

    def awaited(self) -> frozenset[str]:
        return frozenset()

    def doubts(self) -> bool:
        return False

    def hurried(self) -> bool:
        return self.hurry

    def unwritten(self) -> list[tuple[bytes, bytes | None]]:
        return []

    def own(self) -> InstanceInfo:
        """What this instance publishes."""
        return InstanceInfo("pod-0", SubscriptionRecord({"orders": "*"}, 0), lambda: self.pace)

    def policies(self) -> list[PolicyHeard]:
        return [heard for news in list(self.news) for heard in heard_of(news) if isinstance(heard, PolicyHeard)]


@pytest.fixture
def names(group: str) -> Names:
    return Names(group)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def follower(kafka: Broker, names: Names, desk: Desk) -> Iterator[PolicyFollower]:
    """A thread that is not started yet, and always stopped."""
    properties = {"bootstrap.servers": kafka.bootstrap}
    place = PolicySource(names, ("orders",), desk.own())
    thread = PolicyFollower(
        follower_config(properties, names.retry_group, "t"), teller_config(properties, "t"), place, desk
    )
    yield thread
    if thread.is_alive():
        thread.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


def compacted(kafka: Broker, topic: str) -> None:
    create_topic(kafka.bootstrap, topic, 1, {"cleanup.policy": "compact"})


def test_a_policy_topic_that_is_made_anew_is_read_although_its_leader_had_changed(names: Names, desk: Desk) -> None:
    """The client that has read the former topic would hold all that is said of the new one's leader for out of date."""
    with embedded() as own:
        compacted(Broker(own.bootstrap), names.policy)
        produce(own.bootstrap, names.policy, [Out(POLICY, b"policy")])
        properties, desk.hurry = {"bootstrap.servers": own.bootstrap}, True
        place = PolicySource(names, ("orders",), desk.own())
        thread = PolicyFollower(
            follower_config(properties, names.retry_group, "t"), teller_config(properties, "t"), place, desk
        )
        thread.start()
        try:
            until(lambda: len(desk.policies()) == 1, SECONDS, "the first topic is read")
            own.node(0).restart()
            produce(own.bootstrap, names.policy, [Out(POLICY, b"policy")])
            until(lambda: len(desk.policies()) == 2, SECONDS, "it is read by its next leader")
            delete_topics(own.bootstrap, names.policy)
            compacted(Broker(own.bootstrap), names.policy)
            produce(own.bootstrap, names.policy, [Out(POLICY, b"policy")])
            until(lambda: len(desk.policies()) == 3, SECONDS, "the second topic is read")
            told = instance_key("pod-0")
            until(lambda: told in [record.key for record in dump(own.bootstrap, names.policy)], SECONDS, "it says so")
        finally:
            thread.stop()
            thread.join(SECONDS)
    assert not thread.is_alive()


def test_what_was_written_before_is_read_at_once_and_what_is_written_then_is_live(
    kafka: Broker, names: Names, desk: Desk, follower: PolicyFollower
) -> None:
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy"), Out(b"?", b"policy")])
    follower.start()
    until(lambda: any(news.caught_up for news in desk.news), SECONDS, "it has caught up")
    assert len(desk.policies()) == 1
    assert not any(news.live for news in desk.news if any(isinstance(heard, PolicyHeard) for heard in heard_of(news)))
    produce(kafka.bootstrap, names.policy, [Out(None, b"policy")])
    until(lambda: len(desk.policies()) == 2, SECONDS, "it is read live")
    last = next(news for news in reversed(desk.news) if any(isinstance(heard, PolicyHeard) for heard in heard_of(news)))
    assert (last.live, last.caught_up, desk.policies()[-1]) == (True, True, PolicyHeard(None))


def test_the_subscription_is_told_and_taken_back_by_a_stop(
    kafka: Broker, names: Names, desk: Desk, follower: PolicyFollower
) -> None:
    compacted(kafka, names.policy)
    follower.start()
    until(lambda: dump(kafka.bootstrap, names.policy), SECONDS, "it is told")
    (row,) = dump(kafka.bootstrap, names.policy)
    value = json.loads(row.value or b"")
    assert (row.key, value["subscription"]) == (b"instance/pod-0", {"orders": "*"})
    assert abs(value["at"] - time.time() * 1000) < 60_000
    follower.stop()
    follower.join(SECONDS)
    assert [row.value is None for row in dump(kafka.bootstrap, names.policy)] == [False, True]


def test_without_the_topic_it_has_caught_up_at_once_and_creates_nothing(
    kafka: Broker, names: Names, desk: Desk, follower: PolicyFollower, caplog: pytest.LogCaptureFixture
) -> None:
    follower.start()
    until(lambda: any(news.caught_up for news in desk.news), SECONDS, "there is nothing to read")
    assert f"{names.policy} is missing, or not for this user to see" in caplog.text
    assert all(names.policy not in news.look.topics for news in desk.news if news.look is not None)
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy")])
    until(lambda: len(desk.policies()) == 1, SECONDS, "it is followed once it is there")


def test_a_topic_that_is_deleted_and_made_anew_is_followed_again(
    kafka: Broker, names: Names, desk: Desk, follower: PolicyFollower
) -> None:
    """Kafka does not tell the client: at the old offset the new log has only ended, or has a later record."""
    desk.hurry = True
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy")])
    follower.start()
    until(lambda: len(desk.policies()) == 1, SECONDS, "it is read")
    delete_topics(kafka.bootstrap, names.policy)
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy"), Out(b"?", b"other"), Out(b"?", b"another")])
    until(lambda: len(desk.policies()) == 2, 2 * SECONDS, "the new topic is read from its beginning")


def test_a_topic_made_anew_is_seen_although_the_client_has_read_on_in_it(
    kafka: Broker, names: Names, desk: Desk, follower: PolicyFollower
) -> None:
    """Its next look is a minute away: until then the client reads the new topic from the place in the old one on."""
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy")])
    follower.start()
    until(lambda: len(dump(kafka.bootstrap, names.policy)) == 2, SECONDS, "it is read, and the instance told")
    delete_topics(kafka.bootstrap, names.policy)
    compacted(kafka, names.policy)
    produce(kafka.bootstrap, names.policy, [Out(POLICY, b"policy"), *(Out(b"?", b"other%d" % n) for n in range(9))])
    until(lambda: sum(len(news.records) for news in list(desk.news)) > 2, SECONDS, "it has read on")
    desk.hurry = True
    until(lambda: len(desk.policies()) == 2, SECONDS, "the new topic is read from its beginning")


# --- levels that left the policy --------------------------------------------------------------------------------------


def test_only_the_groups_own_level_topics_are_strays() -> None:
    there = ["b-RETRY-1s", "b-RETRY-60s", "b-RETRY", "b-RETRY-EVENTS", "b-RETRY-POLICY", "bb-RETRY-1s", "b-RETRY-2h"]
    assert unlisted_levels(Names("b"), ("orders",), there, {"b-RETRY-1s"}) == {"b-RETRY-2h"}
    per_topic = Names("b", "{topic}-{group}")
    there = ["orders-b-RETRY-1s", "other-b-RETRY-1s", "b-RETRY-1s"]
    assert unlisted_levels(per_topic, ("orders",), there, ()) == {"orders-b-RETRY-1s"}


def test_a_level_is_left_as_long_as_the_group_has_not_done_its_last_record(
    kafka: Broker, make_topic: MakeTopic, group: str
) -> None:
    empty, untouched, half, done, expired = (make_topic(2) for _ in range(5))
    for topic in (untouched, half, done, expired):
        produce(kafka.bootstrap, topic, [Out(b"x", partition=1)] * 3)
    commit(kafka.bootstrap, group, TopicPartition(half, 1, 2))
    commit(kafka.bootstrap, group, TopicPartition(done, 1, 3))
    delete_all(kafka, expired)
    consumer = Consumer(follower_config({"bootstrap.servers": kafka.bootstrap}, group, "t"))
    logs = OffsetLookup(consumer, Leaders())
    found = undrained_levels(logs, dict.fromkeys((empty, untouched, half, done, expired), 2))
    assert found == Undrained(frozenset({untouched, half}), frozenset())
    assert undrained_levels(logs, {}) == Undrained(frozenset(), frozenset())
    consumer.close()


def delete_all(kafka: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 1, 3)]).values():
        future.result(SECONDS)


def test_what_an_open_transaction_holds_back_is_not_taken_for_done(
    kafka: Broker, make_topic: MakeTopic, group: str
) -> None:
    topic, other = make_topic(), make_topic()
    produce(kafka.bootstrap, topic, [b"x"])
    produce(kafka.bootstrap, other, [b"x"])
    commit(kafka.bootstrap, group, TopicPartition(topic, 0, 0))
    dead = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"dead-{group}"})
    dead.init_transactions(SECONDS)
    dead.begin_transaction()
    outsider = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    dead.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], outsider.consumer_group_metadata(), SECONDS)
    consumer = Consumer(follower_config({"bootstrap.servers": kafka.bootstrap}, group, "t"))

    def undrained() -> Undrained:
        return undrained_levels(OffsetLookup(consumer, Leaders()), {topic: 1, other: 1})

    full = Undrained(frozenset({topic, other}), frozenset())
    assert undrained() == Undrained(frozenset({other}), frozenset({topic})), "it says nothing of this one alone"
    dead.abort_transaction(SECONDS)
    until(lambda: undrained() == full, SECONDS, "Kafka says again")
    consumer.close()
    outsider.close()
