"""Read what waits in queue topics, and single records, for people: commands, pages and checks.

No group is joined and nothing is committed. What changes meanwhile may be shown as it was, or not at all.

*Progress with notes* (`progress_with_notes`). Owners settle waiting records early when an operator decides so, and note
their offsets in chunks: partition 1 of the policy topic (`topics/owner_notes.py`). Progress has one letter that says
so. Only then the notes are read; and progress once more behind them, because an owner deletes a chunk in the
transaction that moves progress past it.

*Queues* (`read_waiting`): each open copy once, from the group's progress to the present end.

*One record* of a main topic by its id (`read_main_record`), for a command that delivers it as a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import Message
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.waiting_keys import WaitingKeys
from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.hints import ABSENT, hint, not_ours
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span, led_partitions, unled_text
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import main_reading_of, queue_reading_of, to_record
from reconsume.sidecar.kafka.policy_topic import NotesLog
from reconsume.sidecar.kafka.scan import Bounds, Report, ScanClient, partition_of
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import CHUNK_KEY, NotesOfPartition, settled_in, unpack_bits


def progress_with_notes(
    cluster: Cluster, names: Names, read: Callable[[], Mapping[PartitionName, Progress]]
) -> dict[PartitionName, Progress]:
    """Return progress, with the offsets above it that were settled early. `read`: asks for it. Raises BrokerError."""
    progress = dict(read())
    noted = {Partition(*name) for name, one in progress.items() if one.notes}
    if not noted:
        return progress
    notes = NotesLog(cluster, names, CHUNK_KEY, noted).read_on()
    progress = dict(read())
    for source in noted & progress.keys():
        one = progress[source]
        early = settled_early(notes.of(source), "" if one.log is None else one.log.topic)
        progress[source] = replace(one, done=OffsetRanges.of(one.done).union(early))
    return progress


def settled_early(notes: NotesOfPartition, log: str) -> OffsetRanges:
    """Return the offsets that chunks name. `log`: the digest of the topic's id; empty: not known. Chunks of another are
    left out."""
    early = list[int]()
    for number, chunk in notes.chunks.items():
        bits = unpack_bits(chunk.bits)
        if bits is not None and log in ("", chunk.id):
            early += settled_in(number, bits)
    return OffsetRanges.of(early)


MOST_READ = 500_000
"""Copies that are read at most, unless the caller says otherwise: some 100 MB of memory, whatever their keys."""


class Wanted(NamedTuple):
    """What is to be read.

    `key`: records of this key alone, unless it is None. `most_read`: copies that are read at most. `most_kept`: records
    that are kept of a key.
    """

    key: bytes | None = None
    most_read: int = MOST_READ
    most_kept: int = 1


class WaitingScan(NamedTuple):
    """What was read. `bad`: records of the queue topics that are no copies of ours. `missing`: why more may wait."""

    keys: WaitingKeys
    bad: int
    missing: str


class NoQueuesError(ContractError):
    """The group keeps its order in place: it has no queues."""


def read_waiting(
    cluster: Cluster, policy: Policy, topics_of: Iterable[str], by: OrderBy, wanted: Wanted, report: Report
) -> WaitingScan:
    """Return what waits in the queue topics of some main topics of a group.

    Raises BrokerError, NoQueuesError, and ContractError if a queue topic is missing.
    """
    names = policy.names
    queues = [names.ordered(topic) for topic in topics_of]
    topics = cluster.existing(queues) if policy.queued else cluster.visible(queues)
    if not topics:
        if not policy.queued:
            finds = f"`{hint('find')}` finds a record that is retried in place"
            raise NoQueuesError(f"without retry.ordered_ladder this group has no queues: {finds}")
        raise ContractError(f"{names.ordered(policy.topics[0])} is {ABSENT}: `{hint('topics apply')}` creates it")
    led = led_partitions(topics.values())
    progress = progress_with_notes(cluster, names, partial(cluster.progress, names.group, led))
    spans = {
        partition: Span(max(span.begin, progress[partition].next if partition in progress else 0), span.end)
        for partition, span in cluster.spans(led).items()
    }
    copies = OpenCopies(policy, by, wanted, progress)
    with ScanClient(cluster.kafka, names.group, cluster.client_id) as client:
        bounds = Bounds(ANSWER_SECONDS, records=wanted.most_read)
        scan = client.scan(spans, bounds, expected="the queues", report=report)
        for message in scan:
            copies.take(message)
    absent = ", ".join(queue for queue in queues if queue not in topics)
    reasons = [
        scan.missing("the queues"),
        unled_text(topics.values()),
        f"{absent} is {ABSENT}" if absent else "",
    ]
    return WaitingScan(copies.keys, copies.bad, "; ".join(filter(None, reasons)))


class OpenCopies:
    """The copies of some queues that are not done: gathered into `keys`. `bad`: as in `WaitingScan`."""

    def __init__(self, policy: Policy, by: OrderBy, wanted: Wanted, progress: Mapping[PartitionName, Progress]) -> None:
        self.keys, self.bad = WaitingKeys(by, wanted.most_kept), 0
        self._wanted, self._progress, self._reading = wanted, progress, queue_reading_of(lambda: policy)

    def take(self, message: Message) -> None:
        """Take in a record of a queue topic."""
        source, key = partition_of(message), self._wanted.key
        if source in self._progress and self._progress[source].covers(message.offset() or 0):
            return
        if key is not None and message.key() != key:
            return
        record = to_record(message, Partition(*source), 0, self._reading)
        state = retry_state_of(record)
        if record.fault or state.order is None:
            self.bad += 1
        else:
            self.keys.add(record, state, state.order)


CLIENT = "reconsume-one-record"


def read_main_record(
    kafka: Mapping[str, str], group: str, topics: Sequence[str], ident: str, drains: Mapping[str, str]
) -> Record:
    """Return the record `topic:partition:offset`. `topics`: the main topics of the group; `drains`: those of drained
    topics.

    Raises RecordError if there is no such record, BrokerError if Kafka does not answer.
    """
    topic, number, offset_text = ident.rsplit(":", 2)
    source, offset = Partition(topic, int(number)), int(offset_text)
    if topic not in topics:
        raise RecordError(not_ours(topic, topics))
    cluster = Cluster(kafka, CLIENT)
    there = cluster.existing([topic]).get(topic)
    span = cluster.spans([source]).get(source) if there is not None and source.number < there.partitions else None
    if span is None or not span.begin <= offset < span.end:
        has = f"that partition has {span.begin} to {span.end - 1}" if span and span.end > span.begin else "it is empty"
        raise RecordError(f"there is no record {ident}: {has if span else 'there is no such partition'}")
    with ScanClient(kafka, group, CLIENT) as client:
        for message in client.scan({source: Span(offset, offset + 1)}, Bounds(ANSWER_SECONDS), expected=ident):
            if message.offset() == offset:
                return to_record(message, source, 0, main_reading_of((), drains))
    raise RecordError(f"there is no record {ident}: at this offset the log has none")
