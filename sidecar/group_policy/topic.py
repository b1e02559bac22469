"""Read the policy topic once for several checks: the group's policy, and which instances there are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, Message

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.range_reader import RangeReader
from reconsume.topics.hold_record import HoldHeard
from reconsume.topics.names import Names
from reconsume.topics.policy_record import (
    PARTITION,
    Heard,
    InstanceHeard,
    PolicyHeard,
    SubscriptionRecord,
    parse_record,
)

MOST = 2 * 1024 * 1024
"""Bytes of records that are kept. Parsed they take about twenty times as much at worst."""
POLICY, INSTANCE, HOLD = "policy", "instance/", "hold/"

T = TypeVar("T")


class PolicyTopicRecord(NamedTuple):
    """A record of the policy topic, and when it was written (epoch ms)."""

    heard: Heard
    at: int


class Latest:
    """The last record of the policy, of each instance and of each hold, in the order of writing, within MOST bytes.

    A writer to the topic may name any number of instances. Above the limit, the oldest records of instances are
    dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[PolicyTopicRecord, int]] = {}
        self._bytes = 0

    def add(self, told: PolicyTopicRecord, size: int) -> None:
        """Add a record of `size` bytes."""
        match told.heard:
            case PolicyHeard():
                name = POLICY
            case InstanceHeard(instance=instance):
                name = INSTANCE + instance
            case HoldHeard(id=ident):
                name = HOLD + ident
            case _:  # no check uses it
                return
        self._forget(name)
        self._latest[name] = (told, size)
        self._bytes += size
        while self._bytes > MOST:
            self._forget(next(one for one in self._latest if one != POLICY))

    def records(self) -> tuple[PolicyTopicRecord, ...]:
        return tuple(told for told, _ in self._latest.values())

    def _forget(self, name: str) -> None:
        self._bytes -= self._latest.pop(name, (None, 0))[1]


def read_policy_topic(cluster: Cluster, names: Names) -> tuple[PolicyTopicRecord, ...] | None:
    """Return the last record of the policy and of each instance. None if the topic does not exist.

    Raises BrokerError.
    """
    if not cluster.existing([names.policy]):
        return None
    latest = Latest()
    for message in read_messages(cluster, names, FIRST_ANSWER_SECONDS):
        record = PolicyTopicRecord(parse_record(message.key(), message.value()), message.timestamp()[1])
        latest.add(record, len(message.value() or b""))
    return latest.records()


def living(records: Iterable[PolicyTopicRecord], after: int) -> dict[str, SubscriptionRecord]:
    """Return what live instances say, by name. `after`: epoch ms; an older heartbeat says nothing of now."""
    beats = [beat for beat, _ in records if isinstance(beat, InstanceHeard)]
    return {beat.instance: beat.record for beat in beats if beat.record is not None and beat.record.at > after}


def read_messages(cluster: Cluster, names: Names, within: float) -> Iterator[Message]:
    """Yield all messages of the policy topic, for `within` seconds. Raises BrokerError, also if it takes longer."""
    deadline = time.monotonic() + within
    spans = cluster.spans([(names.policy, PARTITION)])
    consumer = make_client(
        Consumer, {**follower_config(cluster.kafka, names.retry_group, cluster.client_id), "log_level": 0}
    )
    try:
        reader = RangeReader(consumer, spans)
        yield from reader.records(deadline=deadline)
    finally:
        consumer.close()
    if reader.left:
        raise BrokerError(f"{names.policy} could not be read to its end within {within:g} s")
