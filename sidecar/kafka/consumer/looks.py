"""Look every ten seconds where the partitions end, how far the levels are due, and whether the logs are still the same.

A broker answers a connection in order. So behind a fetch each of these requests waits until that has records, or for
`fetch.wait.max.ms`, and the consumer's thread with it (2.16; another thread would wait for the client's lock). Levels
are resumed early enough for one such wait (`RESUME_EARLY_MS`). So there are seconds between two questions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import OFFSET_END, TopicPartition

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.ages import LogEnds
from reconsume.sidecar.core.progress import is_recreated
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedByKey, OwnedPartition, high_of
from reconsume.sidecar.kafka.consumer.log_checks import LogIds, OffsetLookup, no_log_ids, recreated
from reconsume.sidecar.printable import plural

LOOK_EVERY = 10.0
"""Seconds until each question is asked again."""
ANSWER_WITHIN = 1.0
"""Seconds for one request. It takes 1.2 ms for 216 partitions if no fetch is before it (measured). The consumer does
not poll meanwhile: a longer wait would delay records and rebalances."""
SLACK = 3_000
"""ms by which a record must be overdue to count. A paused partition takes up to 1 s to be fetched again (measured).
With less, partitions that are just being fetched would count. The look that finds the same offset again is 10 s later.
"""
MOST_NAMED = 3
"""Partitions that a sentence names."""
UNANSWERED_FOR = 30.0
"""Seconds for which a partition's end is not known before that is named. The cluster itself gives a partition of a node
that has died another leader within `broker.session.timeout.ms`, 9 s."""

_LOG = logging.getLogger("reconsume.assignment")


class Looks:
    """The looks of one lane's consumer, on its thread: one question in each turn, the three of them in turn.

    `every`: seconds until each question is asked again. `log_ids`: tells which logs the topics have.
    """

    def __init__(self, every: float = LOOK_EVERY, log_ids: LogIds = no_log_ids) -> None:
        self._log_ids = log_ids
        self.ends: Mapping[Partition, int] = {}
        """The ends at the last look; replaced as a whole."""
        self.answered: Mapping[Partition, int] = {}
        """Those that were answered at the last look itself."""
        self.highs: Mapping[Partition, int] = {}
        """Where the logs ended at the last look, with records of transactions that are still open; replaced as a
        whole."""
        self.tell_ends: Callable[[LogEnds], None] = lambda ends: None
        """Called with them on the consumer's thread after each look."""
        self._every = every
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

    def ask(self, logs: OffsetLookup, owned_partitions: OwnedByKey, now: float) -> list[Partition]:
        """Ask the next question; return the partitions whose log has turned out to be another one."""
        self._next_at = now + self._every / len(self._questions)
        question = self._questions[self._asked % len(self._questions)]
        self._asked += 1
        return question(logs, owned_partitions, now)

    def _ends(self, logs: OffsetLookup, owned_partitions: OwnedByKey, now: float) -> list[Partition]:
        sources = [owned.partition for owned in owned_partitions.values()]
        ends = logs.numbers([TopicPartition(*source, OFFSET_END) for source in sources], ANSWER_WITHIN)
        earlier = {source: self.ends[source] for source in sources if source in self.ends}
        self.ends, self.answered = earlier | ends, ends
        self.highs = {
            owned.partition: max(high_of(logs.consumer, owned), self.ends.get(owned.partition, 0))
            for owned in owned_partitions.values()
        }
        self._unanswered_since = {
            source: self._unanswered_since.get(source, now) for source in sources if source not in ends
        }
        self._name(frozenset(source for source, at in self._unanswered_since.items() if now - at >= UNANSWERED_FOR))
        self.tell_ends(LogEnds(self.highs, self.ends, self.unanswered))
        return []

    def _due_offsets(self, logs: OffsetLookup, owned_partitions: OwnedByKey, now: float) -> list[Partition]:
        self.due_offsets.request_due_offsets(logs, owned_partitions.values(), self.ends)
        return []

    def _logs(self, logs: OffsetLookup, owned_partitions: OwnedByKey, now: float) -> list[Partition]:
        read = {
            owned.partition: (owned.last + 1, owned.last_at_ms)
            for owned in owned_partitions.values()
            if owned.last_at_ms is not None
        }
        named = {owned.partition: owned.log for owned in owned_partitions.values() if owned.log is not None}
        logs_now = self._log_ids({source.topic for source in named})
        others = {source for source, log in named.items() if is_recreated(log, logs_now.get(source.topic))}
        return sorted(others.union(recreated(logs, read, ANSWER_WITHIN)))

    def _name(self, unanswered: frozenset[Partition]) -> None:
        """Log once of which partitions nothing is known, and once when that is over."""
        if unanswered - self.unanswered:
            text = "for %d s Kafka has not said what is in %s: %s; their lag is not known meanwhile"
            _LOG.warning(
                text,
                UNANSWERED_FOR,
                plural(len(unanswered), "partition"),
                named(unanswered),
                extra={"event": "partitions-unanswered"},
            )
        elif self.unanswered and not unanswered:
            _LOG.info("Kafka says again what all partitions hold", extra={"event": "partitions-answered"})
        self.unanswered = unanswered


class DueOffsets:
    """The first offsets that are not due yet, of one lane's level partitions, by Kafka's answer.

    Level topics carry the broker's time of each append. So one request for (now − the level's delay) gives the answer,
    whatever the lane believes about its records. Where a leader does not answer, the earlier answer stays: a due offset
    only moves forward, so an old one is still true.

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

    def request_due_offsets(
        self, logs: OffsetLookup, owned_partitions: Collection[OwnedPartition], ends: Mapping[Partition, int]
    ) -> None:
        """Request the due offsets of the level partitions that are owned. What is not answered is in `problem`."""
        waits = self.waits()
        sources = [owned.partition for owned in owned_partitions if owned.partition.topic in waits]
        if not sources:
            self._known, self.problem = {}, ""
            return
        asked = [TopicPartition(*source, due_before(waits, source.topic)) for source in sources]
        found = logs.offsets(asked, ANSWER_WITHIN)
        heads = {source: head for source in found if (head := head_of(source, found[source], ends)) is not None}
        self._known = {source: head for source in sources if (head := heads.get(source, self._known.get(source)))}
        silent = [source for source in sources if source not in found]
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
