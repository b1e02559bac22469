"""Read what waits in the queue topics, for people: each open copy once, from the group's progress to the present end.

No group is joined and nothing is committed. What changes meanwhile may be shown as it was, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from confluent_kafka import Message

from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.waiting_keys import WaitingKeys
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span, unled_text
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import queue_reading_of, to_record
from reconsume.sidecar.kafka.noted_progress import progress_with_notes
from reconsume.sidecar.kafka.scan import Bounds, Report, ScanClient, partition_of
from reconsume.topics.attempt import retry_state_of

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
    led = [partition for topic in topics.values() for partition in topic.led]
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
