"""Find one record that waits in a queue topic, as the owner of its partition knows it. Nothing is written here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer
from msgspec.structs import replace

from reconsume.sidecar.core.lane.in_place_queues import OrderBy, line_of
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import CLIENT, QUIET, DlqTopics, Span
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.consumer.committed_offsets import committed
from reconsume.sidecar.kafka.queues.queue_reading import queue_reading_of
from reconsume.topics.attempt import Attempt, attempt_of, retry_state_of
from reconsume.topics.group_rules import number_of
from reconsume.topics.retry_headers import ID, RetryState
from reconsume.topics.retry_order import Order

COORDINATOR_SECONDS = 5.0
"""Seconds that the group's coordinator may be unavailable, as after the restart of its broker. With more, a call of the
API would have no time left."""
AGAIN_AFTER = 0.5
"""Seconds between two requests to the coordinator, each of which may be a warning in the log."""


class WaitingRecord(NamedTuple):
    """A record that waits: its newest copy, without value and headers, and the id of the first record of its key (its
    own, if it is the head)."""

    record: Record
    state: RetryState
    head: str

    @property
    def position(self) -> str:
        """The position of its copy, `topic:partition:offset`."""
        return f"{self.record.source.topic}:{self.record.source.number}:{self.record.offset}"

    @property
    def was(self) -> str:
        """How it waits: parked, behind another of its key, or for its time."""
        if self.state.parked:
            return "parked"
        return "waiting" if self.head == self.state.id else "behind"


def find_waiting(
    there: DlqTopics, policy: Policy, by: OrderBy, ident: str, deadline: float | None = None
) -> WaitingRecord | None:
    """Return the record with this id if it waits in a queue of the group, else None.

    Raises BrokerError if the queue cannot be read, or not to its end by the deadline (monotonic seconds). `by`: as
    `LaneOptions.order`.
    """
    if not policy.has_queues or ID.fullmatch(ident.encode(errors="replace")) is None:
        return None
    queue = Partition(there.names.ordered(ident.rsplit(":", 2)[0]), number_of(ident))
    waiting = waiting_in(there, policy, queue, deadline)
    if (record := waiting.get(ident)) is None:
        return None
    line = line_of(record, by)
    same_key = [other for other in waiting.values() if line_of(other, by) == line]
    return WaitingRecord(record, retry_state_of(record), retry_state_of(min(same_key, key=_order_of)).id)


def waiting_in(there: DlqTopics, policy: Policy, queue: Partition, deadline: float | None = None) -> dict[str, Record]:
    """Return the newest copy of each record that waits in a queue, by its id; empty if there is no such queue.

    The copies have no value and no headers: a sidecar has memory for no second queue. Raises BrokerError.
    """
    topic = there.cluster.existing([queue.topic]).get(queue.topic)
    if topic is None or queue not in topic.all_partitions:
        return {}
    newest: dict[str, Record] = {}
    for record in _open_copies(there, policy, queue):
        if deadline is not None and time.monotonic() > deadline:
            raise BrokerError(f"{queue} could not be read to its end in time; nothing was decided")
        state = retry_state_of(record)
        before = newest.get(state.id)
        if record.fault == "" and (before is None or _attempt(before) <= _attempt(record)):
            newest[state.id] = replace(record, value=None, headers=None)
    return newest


def _open_copies(there: DlqTopics, policy: Policy, queue: Partition) -> Iterator[Record]:
    progress = _progress_in(there, queue)
    begin, end = there.cluster.spans([queue])[queue]
    span = Span(begin if progress is None else max(begin, progress.next), end)
    with Scan(there, {queue: span}, queue_reading_of(lambda: policy)) as scan:
        yield from (record for record in scan if progress is None or not progress.covers(record.offset))


def _progress_in(there: DlqTopics, queue: Partition) -> Progress | None:
    consumer = make_client(Consumer, {**follower_config(there.kafka, there.names.group, CLIENT), **QUIET})
    until = time.monotonic() + COORDINATOR_SECONDS
    try:
        while queue not in (answers := committed(consumer, [queue])) and time.monotonic() < until:
            time.sleep(AGAIN_AFTER)
    finally:
        consumer.close()
    if queue not in answers:
        raise BrokerError(f"the progress of group {there.names.group} in {queue} cannot be read")
    return answers[queue]


def _attempt(record: Record) -> Attempt:
    return attempt_of(retry_state_of(record))


def _order_of(record: Record) -> tuple[tuple[int, int], int]:
    state = retry_state_of(record)
    return (state.order or Order(0)).rank, state.timestamp
