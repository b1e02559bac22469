"""The membership in a group: what transactions commit under, and until when a revoked partition may be committed.

The group's coordinator checks the generation of a commit, not who owns the partition. That is safe as long as a member
rejoins only after it has given up what was revoked. librdkafka 2.16 rejoins earlier if it learns in between that a
topic has more partitions, or that its replicas have moved to other racks (librdkafka#4742): the check in
`rd_kafka_cgrp_metadata_update_check` does not ask whether a revocation is under way. The partitions then go to the next
member at once, while deliveries are still awaited here. So what was revoked is committed under the generation that
revoked it, and under no later one.

Under KIP-848 (`group.protocol=consumer`) the coordinator itself waits until a partition is given up. Generations are
then epochs of the member, which may go up by more than one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from sidecar.core.record import Partition

FORM = b"CGMDv2:"
"""How librdkafka's serialized group metadata begins; the generation follows as an int32 of the machine's byte order."""


class Membership(NamedTuple):
    """What a transaction needs: the group metadata, and the epochs of the partitions that were ours at that moment."""

    metadata: Any
    epochs: Mapping[Partition, int]


class GroupMembership:
    """The membership of one consumer; used on the consumer's thread, but `current` may be read by any.

    `stepwise`: each rebalance is one generation and ends in a callback, as in a classic group.
    """

    def __init__(self, *, stepwise: bool) -> None:
        self.current: Membership | None = None
        """Replaced as a whole: the committer's thread always sees metadata and epochs of the same moment."""
        self._stepwise = stepwise
        self._known: int | None = None
        """The generation of the last rebalance whose callback was called."""

    def take(self, consumer: Consumer, epochs: Mapping[Partition, int]) -> None:
        """Take the membership, in a callback of a rebalance."""
        metadata = metadata_of(consumer)
        self.current = None if metadata is None else Membership(metadata, epochs)
        self._known = generation_of(metadata)

    def renew(self, consumer: Consumer, epochs: Mapping[Partition, int]) -> None:
        """Take the membership between two rebalances.

        It stays as it is if a revocation may wait to be learned, and the group has gone on without it.
        """
        if not self.is_overtaken(consumer):
            self.take(consumer, epochs)

    def is_overtaken(self, consumer: Consumer) -> bool:
        """Whether the group is more than one rebalance ahead of the last callback.

        A revocation that is learned now may be of the rebalance before, and its partitions may be another member's. The
        same is true if a rebalance was cut off before its end, which is harmless, and cannot be told apart.
        """
        if not self._stepwise or self._known is None:
            return False
        generation = generation_of(metadata_of(consumer))
        return generation is not None and generation > self._known + 1

    def has_moved_on(self, consumer: Consumer) -> bool:
        """Whether the group has a later generation than the one that was taken last."""
        now = metadata_of(consumer)
        return self.current is not None and now is not None and now != self.current.metadata

    def end(self) -> None:
        """Commit nothing more: the group is left, or all is lost."""
        self.current = self._known = None


def metadata_of(consumer: Consumer) -> Any:
    """Return the client's group metadata; None if it has left the group, as it may with its last partition."""
    try:
        return consumer.consumer_group_metadata()
    except RuntimeError:
        return None


def generation_of(metadata: object) -> int | None:
    """Return the generation in serialized group metadata; None if it has another form."""
    if not isinstance(metadata, bytes) or not metadata.startswith(FORM):
        return None
    return int.from_bytes(metadata[len(FORM) : len(FORM) + 4], sys.byteorder, signed=True)
