"""Find out how far the levels are due: by Kafka's answer, the first offset of each level partition that is not due yet.

This runs on the consumer's thread, after the request for the ends. Level topics carry the broker's time of each append.
So one request for (now − the level's delay) gives the answer, whatever the lane believes about its records. If a
request fails, the earlier answer stays: a due offset only moves forward, so an old one is still true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from sidecar.clock import wall
from sidecar.core.record import Partition
from sidecar.kafka.consumer.owned_partition import OwnedPartition

SLACK = 3_000
"""ms by which a record must be overdue to count. A paused partition takes up to 1 s to be fetched again (measured).
With less, partitions that are just being fetched would count. The look that finds the same offset again is 10 s later.
"""
ANSWER_WITHIN = 1.0
"""Seconds for one request. The consumer does not poll meanwhile: a longer wait would delay records and rebalances."""
ALL_WITHIN = 2.0
"""Seconds for the requests topic by topic, after the one for all topics has failed. One unreachable leader makes that
one fail for all."""


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
        self._turn = 0

    def look(self, consumer: Consumer, slots: Iterable[OwnedPartition], ends: Mapping[Partition, int]) -> None:
        """Request the due offsets of the level partitions among `slots`. A failure is in `problem`, never raised."""
        waits = self.waits()
        sources = [slot.partition for slot in slots if slot.partition.topic in waits]
        if not sources:
            self._known = {}
            return
        asked = [TopicPartition(*source, due_before(waits, source.topic)) for source in sources]
        problems: list[str] = []
        found = [place for part in self._answers(consumer, asked, problems) for place in part]
        heads = {}
        for place in found:
            if place.error is not None:
                problems.append(f"{place.topic}[{place.partition}]: {place.error.str()}")
            elif (head := head_of(place, ends)) is not None:
                heads[Partition(place.topic, place.partition)] = head
        self._known = {source: head for source in sources if (head := heads.get(source, self._known.get(source)))}
        self.problem = f"how far the levels are due is not known: {'; '.join(problems[:3])}" if problems else ""
        self.tell(dict(self._known))

    def _answers(
        self, consumer: Consumer, asked: Sequence[TopicPartition], problems: list[str]
    ) -> Iterable[list[TopicPartition]]:
        """Return the answer to one request for all topics; if it fails, the answers topic by topic, as time allows."""
        try:
            return [consumer.offsets_for_times(list(asked), timeout=ANSWER_WITHIN)]
        except KafkaException as failure:
            problems.append(str(failure))
        found, until = [], time.monotonic() + ALL_WITHIN
        topics = sorted({place.topic for place in asked})
        self._turn += 1  # each call begins with another topic, so that time runs out for another one
        for topic in topics[self._turn % len(topics) :] + topics[: self._turn % len(topics)]:
            if len(topics) == 1 or time.monotonic() > until:
                break
            try:
                own = [place for place in asked if place.topic == topic]
                found.append(consumer.offsets_for_times(own, timeout=ANSWER_WITHIN))
            except KafkaException as failure:
                problems.append(f"{topic}: {failure}")
        return found


def due_before(waits: Mapping[str, int], topic: str) -> int:
    """Return the time (epoch ms) before which a record of the topic was appended if it is overdue."""
    # Records with a delay shorter than every level wait in the ready topic until they are due. So it gets the delay of
    # the shortest level.
    wait = waits[topic] or min((wait for wait in waits.values() if wait), default=0)
    return wall() - wait - SLACK


def head_of(place: TopicPartition, ends: Mapping[Partition, int]) -> int | None:
    """Return the first offset that is not due; if there is none, the log's end at the last look. None if unknown."""
    if place.offset >= 0:
        return place.offset
    return ends.get(Partition(place.topic, place.partition)) if place.offset == OFFSET_END else None
