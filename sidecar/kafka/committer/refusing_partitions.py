"""Remember which target partitions refuse records, so that no transaction includes them.

A transaction that has included a partition with too few replicas in sync cannot end before these are back. Its marker
is refused too. Meanwhile Kafka answers CONCURRENT_TRANSACTIONS for the transactional id (Kafka 4.3, measured). So such
a partition is tried again only when its leader or its replicas have changed, or after TRY_EVERY.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.copies import Copy

TRY_EVERY = 30.0
"""Seconds after which an unchanged partition is tried again: an operator may have lowered `min.insync.replicas`."""
NO_LEADER = -1


class State(NamedTuple):
    """The state of a partition in the cluster: the node that leads it, and the number of replicas in sync."""

    leader: int
    in_sync: int


class RefusingPartitions:
    """The partitions that refuse records, by topic and number; used by one thread."""

    def __init__(self) -> None:
        self.known: dict[str, list[State]] = {}
        """Every topic's partitions at the last look."""
        self._refusing: dict[str, dict[int, tuple[State | None, float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._refusing)

    def refuse(self, where: str) -> None:
        """Remember that a partition, `topic[number]`, refused records a moment ago."""
        topic, _, number = where.rstrip("]").rpartition("[")
        if number.isdigit():
            state = self._state(topic, int(number))
            self._refusing.setdefault(topic, {})[int(number)] = (state, time.monotonic() + TRY_EVERY)

    def looked(self, known: Mapping[str, list[State]]) -> None:
        """Take in the present state of all partitions; forget those that may take records again."""
        self.known = dict(known)
        for topic, places in list(self._refusing.items()):
            kept = {number: seen for number, seen in places.items() if self._still(topic, number, seen)}
            self._refusing[topic] = kept
            if not kept:
                del self._refusing[topic]

    def refuses(self, copy: Copy) -> str:
        """Return the partition that a copy goes to if it refuses records; else an empty string."""
        places = self._refusing.get(copy.topic)
        if places is None or copy.topic not in self.known:
            return ""
        count = len(self.known[copy.topic])
        by_key = copy.key is not None and not copy.scattered
        number = murmur2_partition(copy.key or b"", count) if by_key else copy.spread % count
        return f"{copy.topic}[{number}]" if number in places else ""

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
    found = 0x9747B28C ^ length
    whole = length & ~3
    for place in range(0, whole, 4):
        word = int.from_bytes(data[place : place + 4], "little") * mixed & 0xFFFFFFFF
        word = (word ^ word >> 24) * mixed & 0xFFFFFFFF
        found = (found * mixed & 0xFFFFFFFF) ^ word
    if length > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * mixed & 0xFFFFFFFF
    found = (found ^ found >> 13) * mixed & 0xFFFFFFFF
    return found ^ found >> 15
