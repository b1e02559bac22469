"""Sort the client's messages by what they say of a partition's position, for all partitions of a batch together.

The consumer's thread requests offsets for all of them at once, and not partition by partition: it must poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.owned_partition import Key, OwnedPartition

OwnedByKey = Mapping[Key, OwnedPartition]


class LostPositions(NamedTuple):
    """What a batch's errors say.

    `unstarted`: awaited partitions that have no committed offset, by the client's report. `lost`: partitions whose next
    offset is not in the log, and that offset. `others`: the errors that say something else.
    """

    unstarted: frozenset[Partition]
    lost: dict[Partition, int]
    others: list[KafkaError]


def is_end(error: KafkaError) -> bool:
    """Return whether this is no error, but the end of a log."""
    return error.code() == KafkaError._PARTITION_EOF


def lost_positions(owned_partitions: OwnedByKey, errors: Iterable[tuple[Message, KafkaError]]) -> LostPositions:
    """Return what these errors say."""
    unstarted, lost, others = set[Partition](), dict[Partition, int](), list[KafkaError]()
    for message, error in errors:
        owned = owned_partitions.get((message.topic(), message.partition()))
        # A client that had the partition before may take its former beginning for the present one, once (2.16). That is
        # a lost position like any other.
        if owned is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
            others.append(error)
        elif owned.awaits is not None:
            unstarted.add(owned.partition)
        else:  # of several errors the lowest offset: nothing may be skipped
            offset = message.offset() or 0
            lost[owned.partition] = min(offset, lost.get(owned.partition, offset))
    return LostPositions(frozenset(unstarted), lost, others)
