"""Read and write the policy topic for the command line and the dashboard.

The topic is read as a whole. A write waits until the broker confirms it. A broker that does not answer raises
BrokerError with one sentence, within seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.topic import policy_cluster, read_messages
from reconsume.sidecar.kafka.client_config import teller_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.topics import versions
from reconsume.topics.names import Names
from reconsume.topics.policy_record import (
    KEY,
    PARTITION,
    BadRecord,
    NewerRecord,
    PolicyHeard,
    PolicyRecord,
    parse_record,
    render_record,
)

MOST, MOST_BYTES = 1_000, 2 * 1024 * 1024
"""Policies of a topic that are kept, and their bytes. Parsed they take about twenty times as much at worst."""
CLIENT = "reconsume-policy"


class Entry(NamedTuple):
    """A policy as the topic holds it. `record` is None if it was withdrawn, or if `fault` says why it cannot be read.

    `newer`: a newer version of Reconsume wrote it, so the policy is no mistake.
    """

    offset: int
    record: PolicyRecord | None
    fault: str = ""
    newer: bool = False


class PolicyStore:
    """The policies of one group."""

    def __init__(self, kafka: Mapping[str, str], names: Names) -> None:
        self._kafka, self._names = kafka, names

    def entries(self) -> list[Entry]:
        """Return the newest policies of the topic in order, and the last one that can be read.

        Raises ContractError if the topic does not exist, and BrokerError if it cannot be read.
        """
        cluster = policy_cluster(self._kafka, self._names, CLIENT)
        messages = read_messages(cluster, self._names, ANSWER_SECONDS)
        return newest((entry, len(message.value() or b"")) for message in messages if (entry := entry_of(message)))

    def write(self, record: PolicyRecord) -> int:
        """Write a policy. Return its offset once every in-sync replica has it. Raises BrokerError."""
        landed: list[Message] = []
        faults: list[str] = []

        def done(error: KafkaError | None, message: Message) -> None:
            landed.append(message)
            if error is not None:
                faults.append(error.str())

        config = {**teller_config(self._kafka, CLIENT), "message.timeout.ms": int(ANSWER_SECONDS * 1000)}
        with closing(make_client(Producer, config)) as producer:  # closed at once, as in dlq/settlements.py
            producer.produce(self._names.policy, render_record(record), KEY, PARTITION, on_delivery=done)
            producer.flush(ANSWER_SECONDS + 1)
        if faults or not landed:
            why = faults[0] if faults else "the broker has not answered"
            raise BrokerError(f"the policy is not written, as far as is known: {why}")
        return landed[0].offset() or 0


def newest(found: Iterable[tuple[Entry, int]]) -> list[Entry]:
    """Return the last entries within MOST and MOST_BYTES, and the last readable one wherever it is.

    `found` has each entry with its size in bytes.
    """
    kept, total, good = deque[tuple[Entry, int]](), 0, None
    for entry, size in found:
        kept.append((entry, size))
        total += size
        good = good if entry.fault else entry
        while total > MOST_BYTES or len(kept) > MOST:
            total -= kept.popleft()[1]
    entries = [entry for entry, _ in kept]
    return entries if good is None or good in entries else [good, *entries]


def entry_of(message: Message) -> Entry | None:
    """Return a message as an entry. None if it is no policy."""
    if message.key() != KEY:
        return None
    offset: Any = message.offset()
    match parse_record(message.key(), message.value()):
        case PolicyHeard(record=record):
            return Entry(offset, record)
        case NewerRecord(v=v):
            return Entry(offset, None, versions.sentence(v), newer=True)
        case BadRecord(text=text):
            return Entry(offset, None, text)
    return None


def in_force(entries: list[Entry]) -> PolicyRecord | None:
    """Return the policy that instances follow: the last one that can be read.

    None if there is none, or if it was withdrawn.
    """
    good = [entry for entry in entries if not entry.fault]
    return good[-1].record if good else None


def unread_of(entries: list[Entry]) -> str:
    """Return why a newer version's policy cannot be read. Empty if this version can read the group's policy."""
    rest = [entry for entry in entries if entry.newer or not entry.fault]
    return rest[-1].fault if rest else ""
