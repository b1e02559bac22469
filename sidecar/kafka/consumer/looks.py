"""Look every ten seconds where the partitions end, how far the levels are due, and whether the logs are still the same.

A broker answers a connection in order. So behind a fetch each of these requests waits until that has records, or for
`fetch.wait.max.ms`, and the consumer's thread with it (2.16; another thread would wait for the client's lock). Levels
are resumed early enough for one such wait (`RESUME_EARLY_MS`). So there are seconds between two questions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import OFFSET_END, TopicPartition

from sidecar.core.record import Partition
from sidecar.kafka.consumer.due_offsets import DueOffsets, named
from sidecar.kafka.consumer.log_checks import made_anew
from sidecar.kafka.consumer.offset_lookup import OffsetLookup
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition

LOOK_EVERY = 10.0
"""Seconds until each question is asked again."""
ANSWER_WITHIN = 1.0
"""Seconds for one request. It takes 1.2 ms for 216 partitions if no fetch is before it (measured)."""

UNANSWERED_FOR = 30.0
"""Seconds for which a partition's end is not known before that is named. The cluster itself gives a partition of a node
that has died another leader within `broker.session.timeout.ms`, 9 s."""

Slots = Mapping[Key, OwnedPartition]

_LOG = logging.getLogger("reconsume.assignment")


class Looks:
    """The looks of one lane's consumer, on its thread: one question in each turn, the three of them in turn."""

    def __init__(self) -> None:
        self.ends: Mapping[Partition, int] = {}
        """The ends at the last look; replaced as a whole."""
        self.unanswered: frozenset[Partition] = frozenset()
        """The partitions whose ends have not been answered for `UNANSWERED_FOR`; replaced as a whole."""
        self.due_offsets = DueOffsets()
        self._questions = (self._ends, self._due_offsets, self._logs)
        self._asked = 0
        self._next_at = 0.0
        self._unanswered_since: dict[Partition, float] = {}

    @property
    def begins(self) -> bool:
        """Whether the next question is the first again."""
        return self._asked % len(self._questions) == 0

    @property
    def problem(self) -> str:
        """What is not known; empty if all is."""
        if self.unanswered:
            return f"Kafka does not say what these partitions hold: {named(self.unanswered)}"
        return self.due_offsets.problem

    def is_time(self, now: float) -> bool:
        """Whether a question is to be asked. `now`: steady seconds."""
        return now >= self._next_at

    def ask(self, logs: OffsetLookup, slots: Slots, now: float) -> list[Partition]:
        """Ask the next question; return the partitions whose log has turned out to be another one."""
        self._next_at = now + LOOK_EVERY / len(self._questions)
        question = self._questions[self._asked % len(self._questions)]
        self._asked += 1
        return question(logs, slots, now)

    def _ends(self, logs: OffsetLookup, slots: Slots, now: float) -> list[Partition]:
        owned = [slot.partition for slot in slots.values()]
        found = logs.numbers([TopicPartition(*source, OFFSET_END) for source in owned], ANSWER_WITHIN)
        earlier = {source: self.ends[source] for source in owned if source in self.ends}
        self.ends = earlier | found
        self._unanswered_since = {
            source: self._unanswered_since.get(source, now) for source in owned if source not in found
        }
        self._name(frozenset(source for source, at in self._unanswered_since.items() if now - at >= UNANSWERED_FOR))
        return []

    def _due_offsets(self, logs: OffsetLookup, slots: Slots, now: float) -> list[Partition]:
        self.due_offsets.look(logs, slots.values(), self.ends)
        return []

    def _logs(self, logs: OffsetLookup, slots: Slots, now: float) -> list[Partition]:
        owned = {slot.partition: slot for slot in slots.values()}
        read = {source: (slot.last + 1, slot.last_at) for source, slot in owned.items() if slot.last_at is not None}
        return list(made_anew(logs, read, ANSWER_WITHIN))

    def _name(self, unanswered: frozenset[Partition]) -> None:
        """Log once of which partitions nothing is known, and once when that is over."""
        if unanswered - self.unanswered:
            text = "for %d s Kafka has not said what %d partitions hold: %s; their lag is not known meanwhile"
            _LOG.warning(
                text, UNANSWERED_FOR, len(unanswered), named(unanswered), extra={"event": "partitions-unanswered"}
            )
        elif self.unanswered and not unanswered:
            _LOG.info("Kafka says again what all partitions hold", extra={"event": "partitions-answered"})
        self.unanswered = unanswered
