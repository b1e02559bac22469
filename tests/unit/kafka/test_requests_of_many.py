"""What the consumer's thread asks Kafka between two polls: as much for hundreds of partitions as for one.

Each request may take half a second behind a fetch. Made for one partition after the other, they kept the thread from
polling for a minute, and the process was ended as one that stands still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.delivery.broadcast import AllPartitions
from reconsume.sidecar.group_policy.levels import undrained_levels
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.kafka.consumer.log_checks import LONGEST, LONGEST_REST, Leaders
from tests.unit.kafka.cluster_stub import HIGH, LOW, ClusterStub, Event, Lane

READ_AT = 1_700_000_000_000
FEW = 8
"""Requests between two polls: four seconds where each is behind a fetch."""
COMMITTED_WITHIN = 4.0


class Thread(NamedTuple):
    """A consumer's thread that owns the partitions of a level."""

    cluster: ClusterStub
    lane: Lane
    consumer: ConsumerThread
    assignment: Assignment
    sources: list[Partition]

    def hand_over(self, code: int, offset: int) -> None:
        """One batch with an event of each partition."""
        self.consumer._hand_over(self.cluster.consumer, [Event(source, offset, code) for source in self.sources])  # type: ignore[misc]


def thread_of(count: int, progress: Progress | None, start_at: str = "earliest") -> Thread:
    """A thread with a cluster that answers."""
    topic = "billing-RETRY-10s"
    cluster, lane = ClusterStub(partitions=count), Lane()
    cluster.progress = progress
    assignment = Assignment(lane, start_at=start_at, lock_timeout=1.0)
    assignment.starts.leaders.clock = lambda: cluster.now
    consumer = ConsumerThread({"group.id": "billing-RETRY"}, [topic], lane, assignment, None)
    consumer._client.consumer = cluster.consumer
    consumer.looks.due_offsets.waits = lambda: {topic: 10_000}
    return Thread(cluster, lane, consumer, assignment, [Partition(topic, number) for number in range(count)])


LEVEL = Progress(HIGH, last_at_ms=READ_AT)


def assigned(count: int, silent: bool, progress: Progress | None = LEVEL, start_at: str = "earliest") -> Thread:
    """Partitions that are given to the thread, while all of their leaders or none of them answer."""
    thread = thread_of(count, progress, start_at)
    if silent:
        thread.cluster.silent = {0, 1, 2}
    thread.assignment.on_assign(thread.cluster.consumer, [TopicPartition(*source) for source in thread.sources])
    assert thread.cluster.now <= LONGEST + COMMITTED_WITHIN
    thread.cluster.silent.clear()
    return thread


def at_an_assignment(count: int) -> Thread:
    thread = assigned(count, silent=False)
    assert set(thread.lane.starts) == set(thread.sources)
    return thread


def at_the_first_assignment_of_a_group_that_begins_at_the_latest(count: int) -> Thread:
    thread = assigned(count, silent=False, progress=None, start_at="latest")
    thread.assignment.request_offsets(thread.cluster.consumer, 0.0)
    assert set(thread.lane.starts.values()) == {HIGH}
    return thread


def at_the_first_messages_after_one_without_an_answer(count: int) -> Thread:
    thread = assigned(count, silent=True)
    assert thread.lane.starts == {}
    thread.cluster.asked.clear()
    thread.hand_over(KafkaError._PARTITION_EOF, HIGH)
    assert thread.lane.starts == dict.fromkeys(thread.sources, HIGH)
    assert thread.lane.runs == []  # they are fetched again
    return thread


def at_the_first_messages_that_come_of_another_log(count: int) -> Thread:
    thread = assigned(count, silent=True)
    thread.cluster.asked.clear()
    thread.cluster.later = LOW  # all of it is younger than what was read
    thread.hand_over(KafkaError._PARTITION_EOF, HIGH)
    assert thread.lane.starts == dict.fromkeys(thread.sources, LOW)
    assert thread.lane.runs == []
    return thread


def where_the_client_reports_that_no_offset_is_committed(count: int) -> Thread:
    thread = assigned(count, silent=True, progress=None)
    thread.cluster.asked.clear()
    thread.cluster.now += LONGEST_REST
    thread.hand_over(KafkaError._AUTO_OFFSET_RESET, -1001)
    assert thread.lane.starts == dict.fromkeys(thread.sources, LOW)
    return thread


def where_retention_has_cut_the_logs(count: int) -> Thread:
    thread = assigned(count, silent=False)
    thread.cluster.asked.clear()
    for source in thread.sources:
        thread.assignment.owned_partitions[source].sought = None
    thread.hand_over(KafkaError._AUTO_OFFSET_RESET, LOW - 3)
    assert thread.lane.cuts == dict.fromkeys(thread.sources, (LOW - 3, LOW))
    return thread


def where_the_logs_are_shorter_than_what_was_read(count: int) -> Thread:
    thread = assigned(count, silent=False)
    thread.cluster.asked.clear()
    for source in thread.sources:
        thread.assignment.owned_partitions[source].sought = None
    thread.hand_over(KafkaError._AUTO_OFFSET_RESET, HIGH + 9)
    assert thread.lane.shorter == thread.sources
    return thread


def where_the_topics_were_created_again(count: int) -> Thread:
    thread = assigned(count, silent=False)
    thread.cluster.asked.clear()
    thread.cluster.later = LOW
    for moment in (10.0, 20.0, 30.0):  # the three questions of a look
        thread.consumer._check_client(thread.cluster.consumer, moment)
    assert sorted(thread.lane.shorter) == thread.sources
    return thread


def where_broadcast_begins(count: int) -> Thread:
    thread = thread_of(count, "")
    everything = AllPartitions(thread.lane, lock_timeout=1.0)
    everything._take_partitions(thread.cluster.consumer, thread.sources, thread.sources)
    assert thread.lane.starts == dict.fromkeys(thread.sources, HIGH)
    return thread


def where_removed_levels_are_compared(count: int) -> Thread:
    thread = thread_of(count, LEVEL)
    found = undrained_levels(thread.cluster.lookup(Leaders()), {"billing-RETRY-10s": count})
    assert found == (frozenset(), frozenset())
    return thread


EVERYWHERE = [
    at_an_assignment,
    at_the_first_assignment_of_a_group_that_begins_at_the_latest,
    at_the_first_messages_after_one_without_an_answer,
    at_the_first_messages_that_come_of_another_log,
    where_the_client_reports_that_no_offset_is_committed,
    where_retention_has_cut_the_logs,
    where_the_logs_are_shorter_than_what_was_read,
    where_the_topics_were_created_again,
    where_broadcast_begins,
    where_removed_levels_are_compared,
]


@pytest.mark.parametrize("case", EVERYWHERE, ids=lambda case: case.__name__)
def test_hundreds_of_partitions_cost_no_more_requests_than_one_of_each_leader(case: Callable[[int], Thread]) -> None:
    asked: list[Counter[str]] = [case(count).cluster.asked for count in (3, 216)]
    assert asked[0] == asked[1]
    assert asked[1].total() <= FEW


@pytest.mark.parametrize("silent", [{0}, {1, 2}, {0, 1, 2}])
def test_first_messages_keep_the_thread_from_polling_for_seconds_at_most_whoever_does_not_answer(
    silent: set[int],
) -> None:
    """Given that some leaders answer a fetch and no other request, then the partitions of the others are started."""
    thread = assigned(216, silent=True)
    thread.cluster.silent = silent
    before: Any = thread.cluster.now
    thread.hand_over(KafkaError._PARTITION_EOF, HIGH)
    assert thread.cluster.now - before <= LONGEST
    answering = {source for source in thread.sources if thread.cluster.leader(source.number) not in silent}
    assert set(thread.lane.starts) == answering
    assert thread.lane.runs == []  # they are fetched again
