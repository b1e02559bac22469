"""What a soak looks like from outside while it runs: one line, from Kafka, the ledger and the load alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tests.soak.cluster import UNSAID, lag_of
from tests.soak.world import World
from tests.support.proof.evidence import PartitionName, Progress

LOOK = 2.0
"""Seconds between two looks at Kafka."""
PLAIN_EVERY = 15.0
"""Seconds between two lines where there is no terminal."""


class Seen(NamedTuple):
    """What a look at Kafka found. `waiting` counts offsets, of which some are the marks of transactions."""

    waiting: int = 0
    dead: int = 0
    overdue: float = 0.0
    behind: tuple[str, ...] = ()


class Watch(threading.Thread):
    """Looks at Kafka again and again and shows a line; `at_rest` once nothing is left to do."""

    def __init__(self, world: World, seconds: float, console: Console) -> None:
        super().__init__(name="watch", daemon=True)
        self.seen = Seen()
        self.looks = 0
        """How many looks have succeeded."""
        self.phase = ""
        self._world, self._seconds, self._console = world, seconds, console
        self._letters = Letters(world)
        self._moved: dict[PartitionName, tuple[int, float]] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Look and show, until ended."""
        printed = -PLAIN_EVERY
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._ended.wait(LOOK):
                try:
                    self.seen = self._look()
                    self.looks += 1
                except UNSAID as failure:
                    self._world.journal.tell("blind", said=repr(failure))
                if self._console.is_terminal:
                    live.update(Text(self.line()), refresh=True)
                elif self._world.journal.seconds - printed >= PLAIN_EVERY:
                    printed = self._world.journal.seconds
                    self._console.print(self.line(), highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()
        self._letters.close()

    def line(self) -> str:
        """How it goes."""
        world, seen = self._world, self.seen
        left = max(0.0, self._seconds - world.journal.seconds)
        figures = {
            "left": f"{left:.0f} s" if not self.phase else self.phase,
            "produced": world.load.confirmed,
            "delivered": world.ledger.seen,
            "committed": len(world.ledger.took),
            "waiting": seen.waiting,
            "dead": seen.dead,
            "ordered": sum(side.ledger.seen for side in world.ordered),
            "overdue": f"{seen.overdue:.0f} s",
        }
        faults = ", ".join(world.in_force.values()) or "none"
        return "  ".join(f"{name} {value}" for name, value in figures.items()) + f"  faults: {faults}"

    def _look(self) -> Seen:
        """All progress before any end: what moves from one topic to another meanwhile is seen at the latter."""
        cluster, group = self._world.cluster, self._world.group
        began = time.time_ns() // 1_000_000
        progress = {place: done for asked in cluster.lanes.values() for place, done in cluster.progress(*asked).items()}
        self._world.book.looked(progress, began)
        ends = cluster.ends((*group.mains, *group.retries))
        lags = {place: lag for place, end in ends.items() if (lag := lag_of(progress.get(place), end))}
        return Seen(
            waiting=sum(lag for (topic, _), lag in lags.items() if topic not in group.mains),
            dead=self._letters.count(),
            overdue=self._overdue(progress, lags),
            behind=(*self._ordered(), *_told(lags)),
        )

    def _ordered(self) -> tuple[str, ...]:
        return tuple(line for side in self._world.ordered for line in _told(side.cluster.left()))

    def _overdue(self, progress: Mapping[PartitionName, Progress], lags: Mapping[PartitionName, int]) -> float:
        """For how long, beyond its level's delay, a partition with something left has not come forward."""
        now = time.monotonic()
        longest = 0.0
        for place in lags:
            reached = progress[place].next if place in progress else -1
            if self._moved.get(place, (-2, 0.0))[0] != reached:
                self._moved[place] = (reached, now)
            still = now - self._moved[place][1] - self._world.group.levels.get(place[0], 0) / 1_000
            longest = max(longest, still)
        for place in self._moved.keys() - lags.keys():
            del self._moved[place]
        return longest


class Letters:
    """Counts the dead letters: offsets would count the marks of transactions too. Those of a DLQ that was deleted stay
    counted, if they were seen."""

    def __init__(self, world: World) -> None:
        self._cluster, self._topic = world.cluster, world.group.dlq
        self._counted = self._partitions = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": world.group.bootstrap,
                "group.id": "soak-letters",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    def count(self) -> int:
        """How many there have been so far."""
        partitions = self._cluster.partitions(self._topic)
        if partitions > self._partitions:
            new = [TopicPartition(self._topic, number, 0) for number in range(self._partitions, partitions)]
            self._consumer.incremental_assign(new)
            self._partitions = partitions
        self._counted += sum(message.error() is None for message in self._consumer.consume(10_000, 0.2))
        return self._counted

    def close(self) -> None:
        """Count no more."""
        self._consumer.close()


def _told(lags: Mapping[PartitionName, int]) -> tuple[str, ...]:
    return tuple(f"{topic}[{number}]: {lag} left" for (topic, number), lag in sorted(lags.items()))
