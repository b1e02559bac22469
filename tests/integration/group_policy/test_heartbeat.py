"""What an instance tells of itself: at a change of the pace soon, else as often as the heartbeat."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from reconsume.sidecar.group_policy.heartbeat import LATE, Heartbeat, InstanceInfo
from reconsume.sidecar.kafka.client_config import teller_config
from reconsume.sidecar.kafka.clients import unchanging
from reconsume.topics.names import Names
from reconsume.topics.policy_record import InstanceHeard, PaceTold, SubscriptionRecord, parse_record
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic, dump

SECONDS = 20.0


@dataclass
class Pod:
    """An instance whose pace a test sets."""

    bootstrap: str
    topic: str
    pace: PaceTold | None = field(default_factory=lambda: PaceTold("open", 1))
    overdue: int = 0

    def presence(self, change_every: float) -> Heartbeat:
        own = InstanceInfo("pod-0", SubscriptionRecord({"orders": "*"}, 0), lambda: self.pace, lambda: self.overdue)
        writer = teller_config({"bootstrap.servers": self.bootstrap}, "t")
        return Heartbeat(writer, unchanging(), self.topic, own, pytest.fail, change_every)

    def told(self) -> list[PaceTold | str | None]:
        """The paces, in their order."""
        heard = [parse_record(row.key, row.value) for row in dump(self.bootstrap, self.topic)]
        return ["gone" if one.record is None else one.record.pace for one in heard if isinstance(one, InstanceHeard)]

    def lateness(self) -> list[int | str]:
        """How overdue the retries were, in their order."""
        heard = [parse_record(row.key, row.value) for row in dump(self.bootstrap, self.topic)]
        return ["gone" if one.record is None else one.record.overdue for one in heard if isinstance(one, InstanceHeard)]


@pytest.fixture
def pod(kafka: Broker, group: str) -> Pod:
    topic = Names(group).policy
    create_topic(kafka.bootstrap, topic, 1, {"cleanup.policy": "compact"})
    return Pod(kafka.bootstrap, topic)


def test_that_a_retry_is_overdue_for_a_minute_is_told_at_once_and_so_is_its_end(pod: Pod) -> None:
    presence = pod.presence(0.0)
    presence.tell()
    for pod.overdue in (59_999, LATE, LATE + 5_000, 10):
        presence.turn(there=True)
    presence.take_back()
    until(lambda: pod.lateness() == [0, LATE, 10, "gone"], SECONDS, "it is told")


def test_another_pace_is_told_at_once_and_the_same_one_is_not(pod: Pod) -> None:
    presence, away = pod.presence(0.0), PaceTold("outage", 5, 1, 1, "refused")
    presence.turn(there=True)
    assert presence.clients == []  # nobody has seen the topic yet
    presence.tell()
    presence.turn(there=True)
    pod.pace = away
    presence.turn(there=True)
    pod.pace = PaceTold("outage", 6, 2, 2)
    presence.turn(there=True)
    pod.pace = PaceTold("open", 7)
    presence.turn(there=False)  # a topic that is gone must not be made by being written to
    pod.pace = PaceTold("outage", 8)
    presence.turn(there=True)
    presence.take_back()
    until(lambda: pod.told() == [PaceTold("open", 1), away, "gone"], SECONDS, "it is told")


def test_another_cause_of_an_outage_is_told_soon_too_and_so_is_that_nothing_is_there_to_try(pod: Pod) -> None:
    """Given a heartbeat that has just told of an outage, then its new cause is told when the next one may be."""
    presence = pod.presence(0.3)
    pod.pace = failing = PaceTold("outage", 5, 1, 1, "http-500", "failing")
    presence.tell()
    idle = PaceTold("outage", 5, 0, 1, "http-500", "failing", 17)
    expected = [failing]
    for pod.pace in (idle, PaceTold("outage", 5, 1, 1, "refused", "unreachable")):
        expected.append(pod.pace)
        until(lambda: presence.turn(there=True) or pod.told() == expected, SECONDS, "it is told")
    presence.take_back()


def test_a_pace_that_flaps_is_told_no_more_often_than_that(pod: Pod) -> None:
    presence = pod.presence(3_600.0)
    presence.tell()
    for state in ("outage", "open", "outage"):
        pod.pace = PaceTold(state, 1)
        presence.turn(there=True)
    presence.take_back()
    until(lambda: pod.told() == [PaceTold("open", 1), "gone"], SECONDS, "it is told")


def test_new_keys_make_it_tell_all_again(pod: Pod) -> None:
    presence = pod.presence(0.0)
    presence.tell()
    (first,) = presence.clients
    first.flush(SECONDS)
    presence.renew()
    presence.tell()
    presence.take_back()
    until(lambda: pod.told() == [PaceTold("open", 1)] * 2 + ["gone"], SECONDS, "it is told again")


def test_a_producer_that_reaches_no_broker_in_time_is_replaced() -> None:
    """It may have lost the cluster for good (`kafka/cut_off.py`)."""
    said = list[str]()
    writer = teller_config({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "t") | {"message.timeout.ms": 300}
    own = InstanceInfo("pod-0", SubscriptionRecord({"orders": "*"}, 0))
    presence = Heartbeat(writer, unchanging(), "policy", own, said.append)
    presence.tell()
    (first,) = presence.clients
    until(lambda: presence.turn(there=True) or presence.clients == [], SECONDS, "it is given up")
    presence.tell()
    assert presence.clients not in ([], [first])
    assert len(said) == 1
