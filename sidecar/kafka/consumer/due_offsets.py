"""Find out how far the levels are due: by Kafka's answer, the first offset of each level partition that is not due yet.

This runs on the consumer's thread, after the request for the ends. Level topics carry the broker's time of each append.
So one request for (now − the level's delay) gives the answer, whatever the lane believes about its records. Where a
leader does not answer, the earlier answer stays: a due offset only moves forward, so an old one is still true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from confluent_kafka import OFFSET_END, TopicPartition

from sidecar.clock import wall
from sidecar.core.record import Partition
from sidecar.kafka.consumer.offset_lookup import OffsetLookup
from sidecar.kafka.consumer.owned_partition import OwnedPartition

SLACK = 3_000
"""ms by which a record must be overdue to count. A paused partition takes up to 1 s to be fetched again (measured).
With less, partitions that are just being fetched would count. The look that finds the same offset again is 10 s later.
"""
ANSWER_WITHIN = 1.0
"""Seconds for the request. The consumer does not poll meanwhile: a longer wait would delay records and rebalances."""
MOST_NAMED = 3
"""Partitions that a sentence names."""


class DueOffsets:
    """The due offsets of one lane's level partitions.

    `waits` and `tell` must be set before the thread starts. Without them nothing is requested.
    """

    def __init__(self) -> None:
        self.waits: Callable[[], Mapping[str, int]] = dict
        """The delay of each level topic in ms; 0 for the ready topic."""
        self.tell: Callable[[Mapping[Partition, int]], None] = lambda heads: None
        """Called on the consumer's thread after each look, with all known due offsets."""
        self.problem = ""
        """Why the last look is incomplete; empty if it is complete."""
        self._known: dict[Partition, int] = {}

    def look(self, logs: OffsetLookup, slots: Collection[OwnedPartition], ends: Mapping[Partition, int]) -> None:
        """Request the due offsets of the level partitions among `slots`. What is not answered is in `problem`."""
        waits = self.waits()
        sources = [slot.partition for slot in slots if slot.partition.topic in waits]
        if not sources:
            self._known, self.problem = {}, ""
            return
        asked = [TopicPartition(*source, due_before(waits, source.topic)) for source in sources]
        offsets = logs.offsets(asked, ANSWER_WITHIN)
        heads = {source: head for source in offsets if (head := head_of(source, offsets[source], ends)) is not None}
        self._known = {source: head for source in sources if (head := heads.get(source, self._known.get(source)))}
        silent = [source for source in sources if source not in offsets]
        self.problem = f"Kafka does not say how far the levels are due: {named(silent)}" if silent else ""
        self.tell(dict(self._known))


def due_before(waits: Mapping[str, int], topic: str) -> int:
    """Return the time (epoch ms) before which a record of the topic was appended if it is overdue."""
    # Records with a delay shorter than every level wait in the ready topic until they are due. So it gets the delay of
    # the shortest level.
    wait = waits[topic] or min((wait for wait in waits.values() if wait), default=0)
    return wall() - wait - SLACK


def head_of(source: Partition, offset: int, ends: Mapping[Partition, int]) -> int | None:
    """Return the first offset that is not due; if there is none, the log's end at the last look. None if unknown."""
    return ends.get(source) if offset == OFFSET_END else offset


def named(partitions: Collection[Partition]) -> str:
    """Return the names of some partitions, and how many more there are."""
    names = ", ".join(map(str, sorted(partitions)[:MOST_NAMED]))
    return names if len(partitions) <= MOST_NAMED else f"{names} and {len(partitions) - MOST_NAMED} more"
