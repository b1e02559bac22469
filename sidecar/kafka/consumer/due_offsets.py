"""How far the levels are due: for each level partition the first offset that is not due yet, by what Kafka says.

Made on the consumer's thread, next to the look at the ends. Level topics carry the broker's time of each append, so one
request for (now − the level's delay) answers it, whatever the lane thinks of its records. What a failed request leaves
unknown stays as it was: a head only ever moves on, so an old one is still true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from sidecar.core.record import Partition
from sidecar.kafka.consumer.owned_partition import OwnedPartition

SLACK = 3_000
"""ms by which a record must be overdue to count. A parked partition takes up to 1 s to be fetched again (measured):
with less, partitions that are just being fetched would count. The look that finds the same offset again is 10 s later.
"""
ANSWER_WITHIN = 1.0
"""Seconds for one request. The consumer does not poll meanwhile: longer would hold up records and rebalances."""
ALL_WITHIN = 2.0
"""Seconds for the requests topic by topic, once the one for all has failed: a leader that is away fails them all."""


class DueOffsets:
    """The looks of one lane. `waits` and `tell` are set before the thread starts; without them nothing is looked at."""

    def __init__(self) -> None:
        self.waits: Callable[[], Mapping[str, int]] = dict
        """The delay of each level topic in ms; 0 for the ready topic."""
        self.tell: Callable[[Mapping[Partition, int]], None] = lambda heads: None
        """Is given what is known after each look, on the consumer's thread."""
        self.problem = ""
        """Why the last look does not know all; empty when it does."""
        self._known: dict[Partition, int] = {}
        self._turn = 0

    def look(self, consumer: Consumer, slots: Iterable[OwnedPartition], ends: Mapping[Partition, int]) -> None:
        """Ask for the heads of the level partitions among `slots`; a failure is shown in `problem`, never raised."""
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
        """The answer to one request; where that fails, those to a request for each topic, in turn, as time allows."""
        try:
            return [consumer.offsets_for_times(list(asked), timeout=ANSWER_WITHIN)]
        except KafkaException as failure:
            problems.append(str(failure))
        found, until = [], time.monotonic() + ALL_WITHIN
        topics = sorted({place.topic for place in asked})
        self._turn += 1
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
    """Records of the topic that were appended before this (epoch ms) are overdue.

    In the ready topic waits what is shorter than every level, until it is due; so it gets the shortest level's delay.
    """
    wait = waits[topic] or min((wait for wait in waits.values() if wait), default=0)
    return time.time_ns() // 1_000_000 - wait - SLACK


def head_of(place: TopicPartition, ends: Mapping[Partition, int]) -> int | None:
    """The first offset that is not due; where the log has none, its end at the last look. None: not known."""
    if place.offset >= 0:
        return place.offset
    return ends.get(Partition(place.topic, place.partition)) if place.offset == OFFSET_END else None
