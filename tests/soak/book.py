"""The operator's book: what was destroyed on purpose, by place, so that the checker can tell it from what was lost.

Before a log is cut or a topic deleted, what is in it is read and kept here: it happened, and the checker wants to see
it. Of these records, those that the committed progress did not cover at that moment may be lost by the operator's hand.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.soak.history import History, Look, extended
from tests.support.kafka.topic_io import Row
from tests.support.proof.evidence import PartitionName, Progress

BEFORE, AFTER = 60_000, 15_000
"""ms around a deletion. Copies that were decided on so shortly before and committed after the archive was read went
with the topic unseen; those of just after may still be meant for the topic that is gone. A paused node or lost packets
keep a transaction open for more than half a minute, and what is open is not read."""
MARK = "#"
"""Between a topic's name and the number of its life, for lives that are over; no topic's name has it."""


class Window(NamedTuple):
    """From when to when (epoch ms) a copy that was bound for `topic` may be gone unseen."""

    topic: str
    since: int
    until: int


class Book:
    """What was destroyed, by the operator's track; and what the watch saw of the progress. Read at the end."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.cut: set[tuple[str, int, int]] = set()
        """Topic (with the number of its life), partition and offset of what was destroyed while it was not done."""
        self._archived: dict[tuple[str, int], dict[tuple[int, int], Row]] = {}
        self._lives: Counter[str] = Counter()
        self._undone: dict[str, set[tuple[int, int]]] = {}
        self._looks: dict[PartitionName, list[Look]] = {}
        self._lock = threading.Lock()

    def destroy(self, topic: str, rows: Iterable[Row], progress: Mapping[PartitionName, Progress]) -> int:
        """These records of the topic as it is now are about to be destroyed; how many of them are not done."""
        undone = 0
        with self._lock:
            kept = self._archived.setdefault((topic, self._lives[topic]), {})
            for row in rows:
                kept[row.partition, row.offset] = row
                done = progress.get((topic, row.partition))
                if done is None or not done.covers(row.offset):
                    undone += 1
                    self._undone.setdefault(self._alias(topic, self._lives[topic]), set()).add(
                        (row.partition, row.offset)
                    )
        return undone

    def made_anew(self, topic: str, since: int) -> None:
        """The topic was deleted, which began at `since`, and is there again."""
        with self._lock:
            self._lives[topic] += 1
            self.windows.append(Window(topic, since - BEFORE, time.time_ns() // 1_000_000 + AFTER))

    def looked(self, progress: Mapping[PartitionName, Progress], began: int) -> None:
        """The progress as a look that began at `began` found it."""
        ended = time.time_ns() // 1_000_000
        with self._lock:
            for (topic, partition), done in progress.items():
                place = (self._alias(topic, self._lives[topic]), partition)
                self._looks[place] = extended(self._looks.get(place, []), began, ended, done)

    def history(self) -> History:
        """The progress look by look: topic as in `archive`, partition."""
        return {
            (self._name(topic, int(life)), partition): tuple(looks)
            for (alias, partition), looks in self._looks.items()
            for topic, _, life in [alias.partition(MARK)]
        }

    def archive(self) -> dict[str, list[Row]]:
        """All that was destroyed, by topic: under its own name if the topic still is the same one."""
        return {
            self._name(topic, life): sorted(rows.values(), key=lambda row: (row.partition, row.offset))
            for (topic, life), rows in self._archived.items()
        }

    def undone(self) -> frozenset[tuple[str, int, int]]:
        """What was destroyed while it was not done: topic as in `archive`, partition, offset."""
        named = {self._alias(topic, life): self._name(topic, life) for topic, life in self._archived}
        return frozenset((named[alias], *place) for alias, places in self._undone.items() for place in places)

    def _name(self, topic: str, life: int) -> str:
        return topic if life == self._lives[topic] else self._alias(topic, life)

    def _alias(self, topic: str, life: int) -> str:
        return f"{topic}{MARK}{life}"


def name_of(topic: str) -> str:
    """The topic's name on Kafka."""
    return topic.partition(MARK)[0]
