"""Read the policy topic once for several checks: the group's policy, and which instances there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, Message, Producer

from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import teller_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient
from reconsume.topics.action_record import ActionHeard
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
POLICY, INSTANCE, HOLD, ACTION = "policy", "instance/", "hold/", "action/"

T = TypeVar("T")


class PolicyTopicRecord(NamedTuple):
    """A record of the policy topic, and when it was written (epoch ms)."""

    heard: Heard
    at: int


class Latest:
    """The last record of the policy, of each instance, hold and action, in the order of writing, within MOST bytes.

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
            case ActionHeard(id=ident):
                name = ACTION + ident
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


def policy_cluster(kafka: Mapping[str, str], names: Names, client: str) -> Cluster:
    """Return a connection to a cluster that has the group's policy topic. Raises ContractError if it does not have it,
    and BrokerError."""
    cluster = Cluster(kafka, client)
    if not cluster.existing([names.policy]):
        raise ContractError(absent([names.policy]))
    return cluster


def write_records(kafka: Mapping[str, str], names: Names, client: str, records: Mapping[bytes, bytes | None]) -> None:
    """Write records of the policy topic, by key; None deletes one. Raises BrokerError if one is not known to be
    written."""
    faults: list[str] = []

    def landed(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            faults.append(error.str())

    config = {**teller_config(kafka, client), "message.timeout.ms": int(ANSWER_SECONDS * 1000)}
    # Closed at once, as in dlq/settlements.py.
    with closing(make_client(Producer, {**config, "log_level": 0})) as producer:
        for key, value in records.items():
            producer.produce(names.policy, value, key, PARTITION, on_delivery=landed)
        unsent = producer.flush(ANSWER_SECONDS + 1)
    if faults or unsent:
        why = faults[0] if faults else "the broker has not answered"
        raise BrokerError(f"nothing is known to be written: {why}")


def read_messages(cluster: Cluster, names: Names, within: float) -> Iterator[Message]:
    """Yield all messages of the policy topic, for `within` seconds. Raises BrokerError, also if it takes longer."""
    spans = cluster.spans([(names.policy, PARTITION)])
    with ScanClient(cluster.kafka, names.retry_group, cluster.client_id, Fetches.LITTLE) as client:
        yield from client.scan(spans, Bounds(seconds=within), expected=names.policy)
