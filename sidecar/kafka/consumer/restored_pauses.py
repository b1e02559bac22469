"""Restore the pauses of partitions in the Kafka client after an assignment, or a start at another offset.

The client forgets the pause of a partition that it is given anew, and keeps one that it should forget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.owned_partition import Key, OwnedPartition


def restore_pauses(
    consumer: Consumer, owned: Mapping[Key, OwnedPartition], sources: Sequence[Partition], *, all_paused: bool
) -> None:
    """Pause those of the partitions `sources` that are to be paused, and no other.

    `owned`: what the lane has paused is in its entries. `all_paused`: the lane has no room.
    """
    # A pause outlives `incremental_unassign` (librdkafka 2.16): what was paused before would never be fetched again.
    consumer.resume([TopicPartition(*source) for source in sources])
    paused = [source for source in sources if all_paused or owned[source].paused]
    consumer.pause([TopicPartition(*source) for source in paused])
