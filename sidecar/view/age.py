"""How new the Spark job's rows are: how far the job has read the events.

The job commits its positions in the events topic for the consumer group `<group>-RETRY-VIEW`, before its first batch
and after each. All events before them are rows in the VIEW topic. So the rows are complete up to the time of the oldest
unread event, whatever the rows' own timestamps say: while Spark catches up with an hour of events, those are now.

A position names the topics that it is true of by their ids. What is committed is anybody's bytes: a position of other
topics, or without that text, is none. Then nothing is read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconsume.sidecar.kafka.admin.cluster import Cluster, CommittedOffsets
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span, Topic
from reconsume.topics.names import Names
from reconsume.topics.view_position import PositionTopics, as_java_prints, parse_position

PRECISION = 1_000
"""ms to which `read_until` is exact."""


def job_has_read_until(
    cluster: Cluster, job: CommittedOffsets, names: Names, topics: Mapping[str, Topic], low: int, high: int
) -> int:
    """Return the time (epoch ms), from `low` to `high` (now), before which the job has read all events.

    `job` asks for its positions, `topics` are the group's topics as they are now. Raises BrokerError, also if this
    user may not see the positions.
    """
    if names.events not in topics:
        return high
    spans = cluster.spans(topics[names.events].all_partitions)

    def first_from(time: int) -> dict[PartitionName, int]:
        return {partition: listed.offset for partition, listed in cluster.offsets(spans, time).items()}

    ids = (as_java_prints(topics[name].id) if name in topics else "" for name in (names.events, names.view))
    true_of = PositionTopics(*ids)
    read = {partition: span.begin for partition, span in spans.items()}
    for one in job.read(spans):
        if parse_position(one.metadata) == true_of:
            read[one.topic, one.partition] = max(one.offset, read[one.topic, one.partition])
    return read_until(read, spans, first_from, low, high)


def read_until(
    read: Mapping[PartitionName, int],
    spans: Mapping[PartitionName, Span],
    first_from: Callable[[int], Mapping[PartitionName, int]],
    low: int,
    high: int,
) -> int:
    """Return the latest time, to PRECISION, before which all events are read. It is between `low` and `high`.

    `read`: the next offset of each partition. `first_from` returns the first offset of each partition at or after a
    time, negative if there is none.
    """
    if all(read[partition] >= span.end for partition, span in spans.items()):
        return high
    while high - low > PRECISION:
        middle = (low + high) // 2
        firsts = first_from(middle)
        if all(
            read[partition] >= (first if first >= 0 else spans[partition].end) for partition, first in firsts.items()
        ):
            low = middle
        else:
            high = middle
    return low
