"""How long the oldest record of each partition has waited that could be delivered, whatever the cause.

A record could be delivered from the moment at which it was in the log and nothing that this group does deliberately
kept it back. Holds and rates are deliberate. An outage, the pace and the order are not. A delivery in progress that is
the record's first does not wait; a record that is retried in place does.

The log is measured up to the high watermark: an open transaction of another program keeps records back as well, and
readers of committed records do not see them. Times are the owner's: it notes how far each log reaches
(`Looks.highs`), and when. A new owner begins with the append time of the first open record that it reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from reconsume.sidecar.core.lane.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.overdue import Standing, overdue
from reconsume.sidecar.core.record import NEVER, Now, Partition

MOST_NOTES = 64
"""Notes kept of a partition. Once there are more, every second one goes: ages become less exact, never longer."""
LONG = 300_000
"""ms from which on a topic's oldest record counts as stalled."""
LONG_ALONE = 60_000
"""The same for one partition while the other partitions of its topic are below `SHORT`."""
SHORT = 10_000


class Age(NamedTuple):
    """For how many ms the oldest undelivered record of a partition has waited; 0 if none does."""

    source: Partition
    waited_ms: int


class _Reach:
    """How far one partition's log reached, and when. Times are steady ms.

    `free_ms`: when something deliberate last kept its records back.
    """

    __slots__ = ("dated", "epoch", "free_ms", "notes", "on_hold")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.notes: deque[tuple[int, int]] = deque()
        self.free_ms = -NEVER
        self.dated = False
        self.on_hold = 0

    def note(self, high: int, steady_ms: int) -> None:
        """Note that the log reaches up to `high`, exclusive."""
        notes = self.notes
        if notes and high <= notes[-1][0]:
            return
        notes.append((high, steady_ms))
        if len(notes) > MOST_NOTES:
            # What a removed note covers is covered by the next one, which is younger.
            self.notes = deque([*list(notes)[1:-1:2], notes[-1]])

    def since(self, offset: int) -> int | None:
        """Return since when a record is known to be at `offset`, and drop what is below; None if none is known."""
        notes = self.notes
        while len(notes) > 1 and notes[0][0] <= offset:
            notes.popleft()
        return notes[0][1] if notes and notes[0][0] > offset else None


class Undelivered:
    """What the looks of one lane have shown of its logs. Used on the event loop; `worst` may be read on any thread.

    `is_rated`: whether records of a topic wait for a rate now; of any topic if it gets None.
    """

    def __init__(self, is_rated: Callable[[str | None], bool] = lambda topic: False) -> None:
        self._is_rated = is_rated
        self._reaches: dict[Partition, _Reach] = {}
        self._highs: Mapping[Partition, int] = {}

    def looked(self, highs: Mapping[Partition, int], facts: LaneFacts, now: Now) -> None:
        """Note the high watermarks of the partitions, as of a moment ago."""
        self._highs = highs
        reaches: dict[Partition, _Reach] = {}
        for source, partition in facts.partitions.items():
            reach = self._reaches.get(source)
            if reach is None or reach.epoch != partition.epoch:
                reach = _Reach(partition.epoch)
            if source in highs:
                reach.note(highs[source], now.steady_ms)
            reaches[source] = reach
        self._reaches = reaches
        for source, partition in facts.partitions.items():
            self._keep_free(partition, reaches[source], now)

    def _keep_free(self, partition: PartitionFacts, reach: _Reach, now: Now) -> None:
        """Note whether something deliberate keeps records of a partition back, or did until now."""
        covered = partition.is_covered
        if covered or partition.on_hold < reach.on_hold or self._waits_for_rate(partition):
            reach.free_ms = now.steady_ms
        reach.on_hold = partition.on_hold

    def _waits_for_rate(self, partition: PartitionFacts) -> bool:
        # What is retried in place, blocked or not read although it is fetched waits for something else.
        elsewhere = partition.retrying or partition.blocked or (partition.oldest is None and partition.pause is None)
        return not elsewhere and self._is_rated(partition.source.topic)

    def ages(self, facts: LaneFacts, standing: Standing, now: Now) -> dict[Partition, int]:
        """Return for how many ms the oldest undelivered record of each partition has waited; 0 if none does."""
        late = {} if self._is_rated(None) else overdue(facts, standing, now)
        ages = dict.fromkeys(facts.partitions, 0)
        for source, partition in facts.partitions.items():
            if partition.head_due_ms is not None:  # of a queue
                ages[source] = max(0, now.steady_ms - partition.head_due_ms, late.get(source, 0))
            elif partition.level_delay_ms is None:
                ages[source] = self._age(partition, now)
            elif partition.under is None:
                ages[source] = max(late.get(source, 0), self._unread_age(partition, now))
            else:
                ages[source] = late.get(source, 0)
        return ages

    def _age(self, partition: PartitionFacts, now: Now) -> int:
        """Return the age of a main partition's oldest record that waits, in ms."""
        reach, unread = self._reaches.get(partition.source), self._unread(partition)
        waiting = [offset for offset in (partition.oldest, unread) if offset is not None]
        if reach is None or not waiting or self._waits_for_rate(partition):
            return 0
        offset = min(waiting)
        since_ms = reach.since(offset)
        if since_ms is None:
            return 0
        if not reach.dated and offset == partition.oldest and partition.oldest_at_ms > 0:
            reach.dated = True
            since_ms = min(since_ms, now.steady_ms - max(0, now.wall_ms - partition.oldest_at_ms))
            reach.notes[0] = reach.notes[0][0], since_ms
        return max(0, now.steady_ms - max(since_ms, reach.free_ms))

    def _unread_age(self, partition: PartitionFacts, now: Now) -> int:
        """Return for how many ms a level holds something that is not read although all that was read is done.

        It need not be due before the level's delay is over.
        """
        reach = self._reaches.get(partition.source)
        if reach is None or partition.pause is not None or partition.first != partition.next:
            return 0
        if (unread := self._unread(partition)) is None or (since_ms := reach.since(unread)) is None:
            return 0
        return max(0, now.steady_ms - max(since_ms, reach.free_ms) - (partition.level_delay_ms or 0))

    def _unread(self, partition: PartitionFacts) -> int | None:
        """Return the offset from which on the partition was not read; None if nothing is there, or it is held."""
        if partition.is_covered:
            return None
        offset = partition.next if partition.pause is None else partition.pause.offset
        return offset if offset < self._highs.get(partition.source, 0) else None


def stalled(ages: Iterable[Age]) -> list[Age]:
    """Return the partitions that stand, the oldest first.

    They have waited for `LONG`, or for `LONG_ALONE` while their topic has other partitions, which are below `SHORT`.
    """
    stalled_ages: list[Age] = []
    ordered = sorted(ages, key=lambda age: (age.source.topic, -age.waited_ms))
    for _, group in groupby(ordered, key=lambda age: age.source.topic):
        of_topic: Sequence[Age] = list(group)
        stalled_ages += [age for age in of_topic if age.waited_ms >= LONG]
        first, *others = of_topic
        if LONG_ALONE <= first.waited_ms < LONG and others and others[0].waited_ms < SHORT:
            stalled_ages.append(first)
    return sorted(stalled_ages, key=lambda age: -age.waited_ms)
