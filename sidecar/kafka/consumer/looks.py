"""Look every ten seconds where the partitions end, how far the levels are due, and whether the logs are still the same.

A broker answers a connection in order. So behind a fetch each of these requests waits until that has records, or for
`fetch.wait.max.ms`, and the consumer's thread with it (2.16; another thread would wait for the client's lock). Levels
are resumed early enough for one such wait (`RESUME_EARLY`). So there are seconds between two questions.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from sidecar.core.record import Partition
from sidecar.kafka.consumer.due_offsets import DueOffsets
from sidecar.kafka.consumer.log_checks import made_anew, offsets_at
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition

LOOK_EVERY = 10.0
"""Seconds until each question is asked again."""
ANSWER_WITHIN = 1.0
"""Seconds for one request. It takes 1.2 ms for 216 partitions if no fetch is before it (measured)."""

Slots = Mapping[Key, OwnedPartition]


class Looks:
    """The looks of one lane's consumer, on its thread: one question in each turn, the three of them in turn."""

    def __init__(self) -> None:
        self.ends: Mapping[Partition, int] = {}
        """The ends at the last look; replaced as a whole."""
        self.due_offsets = DueOffsets()
        self._questions = (self._ends, self._due_offsets, self._logs)
        self._asked = 0
        self._next_at = 0.0

    @property
    def begins(self) -> bool:
        """Whether the next question is the first again."""
        return self._asked % len(self._questions) == 0

    def is_time(self, now: float) -> bool:
        """Whether a question is to be asked. `now`: steady seconds."""
        return now >= self._next_at

    def ask(self, consumer: Consumer, slots: Slots, now: float) -> list[OwnedPartition]:
        """Ask the next question; return the partitions whose log has turned out to be another one."""
        self._next_at = now + LOOK_EVERY / len(self._questions)
        question = self._questions[self._asked % len(self._questions)]
        self._asked += 1
        return question(consumer, slots)

    def _ends(self, consumer: Consumer, slots: Slots) -> list[OwnedPartition]:
        places = [TopicPartition(*slot.partition, OFFSET_END) for slot in slots.values()]
        self.ends = offsets_at(consumer, places, ANSWER_WITHIN) or self.ends
        return []

    def _due_offsets(self, consumer: Consumer, slots: Slots) -> list[OwnedPartition]:
        self.due_offsets.look(consumer, slots.values(), self.ends)
        return []

    def _logs(self, consumer: Consumer, slots: Slots) -> list[OwnedPartition]:
        owned = {slot.partition: slot for slot in slots.values()}
        read = {source: (slot.last + 1, slot.last_at) for source, slot in owned.items() if slot.last_at is not None}
        return [owned[source] for source in made_anew(consumer, read, ANSWER_WITHIN)]
