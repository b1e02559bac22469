"""Remember which target topics and partitions refuse records, so that no transaction includes them.

Kafka adds all partitions to a transaction, or none. So one topic that this user may not write fails whatever is written
together with it.

A transaction that has included a partition with too few replicas in sync cannot end before these are back. Its marker
is refused too. Meanwhile Kafka answers CONCURRENT_TRANSACTIONS for the transactional id (Kafka 4.3, measured). So such
a partition is tried again only when its leader or its replicas have changed, or after TRY_EVERY.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from reconsume.topics.transition_records import Copy

TRY_EVERY = 30.0
"""Seconds after which an unchanged partition is tried again: an operator may have lowered `min.insync.replicas`."""
NO_LEADER = -1
TRY_TOPIC_EVERY = 3.0
"""Seconds after which a topic that refused records is tried again: a right that is given shows in no other way. Each
try costs a transaction, and often a producer."""


class State(NamedTuple):
    """The state of a partition in the cluster: the node that leads it, and the number of replicas in sync."""

    leader: int
    in_sync: int


class RefusingTopics:
    """The topics that exist and refuse records, each with the reason; used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusing: dict[str, tuple[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._refusing)

    def refuse(self, topic: str, reason: str) -> None:
        """Remember that a topic refused records a moment ago."""
        self._refusing[topic] = reason, self._clock() + TRY_TOPIC_EVERY

    def why(self, topic: str) -> str:
        """Return why the topic refuses records; empty if it is not known to, or is to be tried again.

        The topic is forgotten when it is to be tried again.
        """
        reason, until = self._refusing.get(topic, ("", 0.0))
        if reason and self._clock() >= until:
            del self._refusing[topic]
            return ""
        return reason


class RefusingPartitions:
    """The partitions that refuse records, by topic and number; used by one thread."""

    def __init__(self) -> None:
        self.known: dict[str, list[State]] = {}
        """Every topic's partitions at the last look."""
        self._refusing: dict[str, dict[int, tuple[State | None, float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._refusing)

    @property
    def topics(self) -> frozenset[str]:
        """The topics with partitions that refuse records."""
        return frozenset(self._refusing)

    def refuse(self, where: str) -> None:
        """Remember that a partition, `topic[number]`, refused records a moment ago."""
        topic, _, number = where.rstrip("]").rpartition("[")
        if number.isdigit():
            state = self._state(topic, int(number))
            self._refusing.setdefault(topic, {})[int(number)] = (state, time.monotonic() + TRY_EVERY)

    def looked(self, known: Mapping[str, list[State]], absent: Collection[str] = ()) -> None:
        """Take in the present state of partitions; forget those that may take records again, or are gone."""
        self.known = {topic: states for topic, states in known.items() if topic not in absent}
        for topic, refusing in list(self._refusing.items()):
            kept = {number: seen for number, seen in refusing.items() if self._still(topic, number, seen)}
            self._refusing[topic] = kept
            if not kept:
                del self._refusing[topic]

    def refuses(self, copy: Copy) -> str:
        """Return the partition that a copy goes to if it refuses records; else an empty string."""
        refusing = self._refusing.get(copy.topic)
        if refusing is None or copy.topic not in self.known:
            return ""
        count = len(self.known[copy.topic])
        by_key = copy.key is not None and not copy.scattered
        number = murmur2_partition(copy.key or b"", count) if by_key else copy.spread % count
        return f"{copy.topic}[{number}]" if number in refusing else ""

    def _state(self, topic: str, number: int) -> State | None:
        states = self.known.get(topic, [])
        return states[number] if number < len(states) else None

    def _still(self, topic: str, number: int, seen: tuple[State | None, float]) -> bool:
        state, until = self._state(topic, number), seen[1]
        if state is None:
            return False  # it does not exist any more: a missing topic is reported in another way
        return state.leader == NO_LEADER or (state == seen[0] and time.monotonic() < until)


def murmur2_partition(key: bytes, count: int) -> int:
    """Return the partition of a key by the partitioner `murmur2_random`, as in the Java client."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    mixed, length = 0x5BD1E995, len(data)
    digest = 0x9747B28C ^ length
    whole = length & ~3
    for index in range(0, whole, 4):
        word = int.from_bytes(data[index : index + 4], "little") * mixed & 0xFFFFFFFF
        word = (word ^ word >> 24) * mixed & 0xFFFFFFFF
        digest = (digest * mixed & 0xFFFFFFFF) ^ word
    if length > whole:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * mixed & 0xFFFFFFFF
    digest = (digest ^ digest >> 13) * mixed & 0xFFFFFFFF
    return digest ^ digest >> 15
