"""Find out how far the Spark job has read the events, from the offsets that it commits, and up to which time.

A row's own timestamp only says when Spark wrote it. While Spark catches up with an hour of events, that is also now. So
what is estimated by rows, where no position can be read, is never taken for known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName
from reconsume.sidecar.kafka.errors import raise_partition_errors
from reconsume.topics.view_position import PositionTopics, parse_position

PRECISION = 1_000
"""ms to which `read_until` is exact."""
ANSWER_WITHIN = 10.0
"""Seconds that Kafka may take to answer."""

_LOG = logging.getLogger("reconsume.view")


class PositionsAnswer(NamedTuple):
    """Kafka's answers about the events.

    `read_until`: epoch ms up to which the job has read the events; None if Kafka does not say. `newest`: the time of
    the newest event. It is requested only if the job has committed no offsets; None if Kafka did not say.
    """

    read_until: int | None
    newest: int | None

    def complete_until(self, at: int, newest_row: int) -> int:
        """Return the time up to which a copy is complete.

        The copy was at the end of the view after `at`, and its newest row was `newest_row` (epoch ms).
        """
        if self.read_until is not None:
            return self.read_until
        return at if self.newest is not None and self.newest <= newest_row else min(newest_row, at)


def ask_events(
    cluster: Cluster, job: Consumer, events: Collection[PartitionName], topics: PositionTopics, low: int, high: int
) -> PositionsAnswer:
    """Return what is known at `high` (epoch ms, now) of the partitions of the events topics.

    `job` is a consumer with the name of the job's group. `topics`: the ids of the topics now. All events before `low`
    are known to be read.
    """
    try:
        ends = {partition: listed.offset for partition, listed in cluster.offsets(events, Offset.END).items()}
        # Unread events count, and not the times of rows: a stopped job shows, and an idle group does not look old. The
        # first offsets of a time, searched by halves, say how old the oldest unread event is.
        if (read := committed(job, ends, topics)) is None:
            newest = [listed.timestamp for listed in cluster.offsets(events, Offset.NEWEST).values()]
            return PositionsAnswer(None, max(newest, default=-1))

        def first_from(time: int) -> dict[PartitionName, int]:
            return {partition: listed.offset for partition, listed in cluster.offsets(events, time).items()}

        return PositionsAnswer(read_until(read, ends, first_from, low, high), None)
    except (BrokerError, KafkaException) as failure:
        # For one, the user may have no right to the events. The rows' own times are used then.
        _LOG.debug("whether the view is up to date is unknown: %s", failure, extra={"event": "view-age-unknown"})
        return PositionsAnswer(None, None)


def committed(
    job: Consumer, ends: Mapping[PartitionName, int], topics: PositionTopics
) -> dict[PartitionName, int] | None:
    """Return the job's position in each partition; None if the job has never committed one. Raises KafkaException.

    `topics`: the ids of the topics now. A position that is true of other topics counts as 0: the job does not know yet
    that one was created again, and will read its events from the first.
    """
    answers = (
        raise_partition_errors(job.committed([TopicPartition(*partition) for partition in ends], timeout=ANSWER_WITHIN))
        if ends
        else []
    )
    read = {
        (partition.topic, partition.partition): min(partition.offset, 0)
        if parse_position(partition.metadata) not in (None, topics)
        else partition.offset
        for partition in answers
    }
    return (
        {partition: max(0, offset) for partition, offset in read.items()}
        if max(read.values(), default=-1) >= 0
        else None
    )


def read_until(
    read: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
    first_from: Callable[[int], Mapping[PartitionName, int]],
    low: int,
    high: int,
) -> int:
    """Return the latest time, to PRECISION, before which all events are read. It is between `low` and `high`.

    `first_from` returns the first offset of each partition at or after a time, negative if there is none.
    """
    if all(read[partition] >= end for partition, end in ends.items()):
        return high
    while high - low > PRECISION:
        middle = (low + high) // 2
        if all_read(read, ends, first_from(middle)):
            low = middle
        else:
            high = middle
    return low


def all_read(
    read: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], firsts: Mapping[PartitionName, int]
) -> bool:
    """Whether everything before the first offsets at or after a time (negative if there is none) is read."""
    return all(read[partition] >= (first if first >= 0 else ends[partition]) for partition, first in firsts.items())
