"""Pause and resume partitions in the Kafka client: one of them for its lane, or all while the lane has no room.

Called on the consumer's thread alone. A call for an assignment that has ended by then does nothing.
"""

from __future__ import annotations

from confluent_kafka import Consumer

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment


def pause(consumer: Consumer, assignment: Assignment, partition: Partition, epoch: int) -> bool:
    """Stop fetching a partition; return whether it is paused now."""
    owned = assignment.owned_partitions.get(partition)
    if owned is None or owned.epoch != epoch:
        return False
    owned.paused = True
    consumer.pause([owned.topic_partition])
    return True


def resume(
    consumer: Consumer, assignment: Assignment, partition: Partition, epoch: int, offset: int, seek_count: int
) -> None:
    """Seek to `offset` and fetch a partition again, unless all are paused."""
    owned = assignment.owned_partitions.get(partition)
    if owned is None or owned.epoch != epoch or not owned.paused:
        return
    owned.paused, owned.seek_count = False, seek_count
    assignment.seek(consumer, owned, offset)  # only after the pause: one before it was lost (rdk#3471)
    if not assignment.all_paused:
        consumer.resume([owned.topic_partition])


def pause_all(consumer: Consumer, assignment: Assignment, choked: bool) -> None:
    """Pause all partitions that are not paused for themselves, or resume these."""
    assignment.all_paused = choked
    topic_partitions = [owned.topic_partition for owned in assignment.owned_partitions.values() if not owned.paused]
    (consumer.pause if choked else consumer.resume)(topic_partitions)
