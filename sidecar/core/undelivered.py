"""How long the oldest record of each partition has waited that could be delivered, whatever the cause.

A record could be delivered from the moment at which it was in the log and nothing that this group does deliberately
kept it back. Holds and rates are deliberate. An outage, the pace and the order are not. A delivery in progress that is
the record's first does not wait; a record that is retried in place does.

Time on hold, and time in which a rate keeps a partition back, does not count; the times before and after it add up.
While a whole partition is kept back, its clock stops (`_Reach.clock`). Under holds by key, a partition follows only the
records that are or were its oldest one (`_Reach.held`); of any other record, the time that it shares with the last hold
is left out. So neither a hold nor its end makes a record young that it did not keep back, and no age is too long.

The log is measured up to the high watermark: an open transaction of another program keeps records back as well, and
readers of committed records do not see them. Times are the owner's: it notes how far each log reaches
(`Looks.highs`), and when. A new owner begins with the append time of the first open record that it reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.overdue import Standing, overdue
from reconsume.sidecar.core.record import Now, Partition

MOST_NOTES = 64
"""Notes kept of a partition. Once there are more, every second one goes: ages become less exact, never longer."""
LONG = 300_000
"""ms from which on a topic's oldest record counts as stalled."""
LONG_ALONE = 60_000
"""The same for one partition while the other partitions of its topic are below `SHORT`."""
SHORT = 10_000
MOST_FOLLOWED = 8
"""Offsets of a partition of which is known for how long a hold has kept them back."""
HOLD, RATE = "hold", "rate"
"""What keeps the oldest record of a partition back deliberately."""


class Age(NamedTuple):
    """For how many ms the oldest undelivered record of a partition has waited; 0 if none does."""

    source: Partition
    waited_ms: int


class Wait(NamedTuple):
    """What the oldest record of a partition does that is not done. `waited_ms`: as in `Age`.

    `kept_by`: what keeps it back deliberately, HOLD or RATE; empty if nothing does. `first`: the lowest offset that is
    not done. `is_sent`: records of it are in flight.
    """

    waited_ms: int
    kept_by: str
    first: int
    is_sent: bool


class _Reach:
    """How far one partition's log reached, and when. Times are ms of its own clock, which stops while it is kept back.

    `held`: for how many ms a hold has kept a record back, by the offsets that are followed. `oldest_held`, `on_hold`:
    as in `PartitionFacts`, at the last look. `released`: when something was first held, and last released.
    """

    __slots__ = (
        "dated",
        "epoch",
        "held",
        "held_since_ms",
        "looked_ms",
        "notes",
        "oldest_held",
        "on_hold",
        "released",
        "stopped_ms",
        "stops",
    )

    def __init__(self, epoch: int, steady_ms: int) -> None:
        self.epoch = epoch
        self.notes: deque[tuple[int, int]] = deque()
        self.dated = self.stops = False
        self.looked_ms, self.stopped_ms = steady_ms, 0
        self.held: dict[int, int] = {}
        self.oldest_held: int | None = None
        self.on_hold = self.held_since_ms = 0
        self.released = (0, 0)

    def clock(self, steady_ms: int) -> int:
        """Return the time of the partition's own clock."""
        return steady_ms - self.stopped_ms

    def note(self, high: int, steady_ms: int) -> None:
        """Note that the log reaches up to `high`, exclusive."""
        notes = self.notes
        if notes and high <= notes[-1][0]:
            return
        notes.append((high, self.clock(steady_ms)))
        if len(notes) > MOST_NOTES:
            # What a removed note covers is covered by the next one, which is younger.
            self.notes = deque([*list(notes)[1:-1:2], notes[-1]])

    def done_below(self, first: int) -> None:
        """Drop the notes of which all records are done."""
        while len(self.notes) > 1 and self.notes[0][0] <= first:
            self.notes.popleft()

    def since(self, offset: int) -> int | None:
        """Return since when a record is known to be at `offset`; None if none is known."""
        return next((at_ms for high, at_ms in self.notes if high > offset), None)

    def date(self, offset: int, since_ms: int) -> None:
        """Note that the record at `offset`, which is known, was there since then."""
        index = next(index for index, (high, _) in enumerate(self.notes) if high > offset)
        self.notes[index] = self.notes[index][0], since_ms

    def stop(self, steady_ms: int, *, stops: bool) -> int:
        """Note whether all of the partition is kept back; return the ms since the last look in which it was not."""
        elapsed_ms, self.looked_ms = steady_ms - self.looked_ms, steady_ms
        was, self.stops = self.stops, stops
        if not (was or stops):
            return elapsed_ms
        self.stopped_ms += elapsed_ms
        return 0

    def follow(self, partition: PartitionFacts, oldest: int | None, elapsed_ms: int, clock_ms: int) -> None:
        """Note which record is the oldest, and which held one is, `elapsed_ms` after the last look."""
        if partition.on_hold < self.on_hold:
            self.released = self.held_since_ms, clock_ms
        if self.on_hold == 0:
            self.held_since_ms = clock_ms - elapsed_ms
        held = {partition.oldest_held, self.oldest_held} - {None}
        for offset in (oldest, partition.oldest_held):
            if offset is not None and offset not in self.held:
                since_ms = self.since(offset)
                age_ms = 0 if since_ms is None else clock_ms - since_ms
                # Nobody knows how much of its time a record was held that is seen now, and held.
                self.held[offset] = self.time_held(offset, since_ms or 0) if offset == oldest else age_ms - elapsed_ms
        for offset in held:
            if offset in self.held:
                self.held[offset] += elapsed_ms
        self.on_hold, self.oldest_held = partition.on_hold, partition.oldest_held
        followed = sorted(offset for offset in self.held if offset >= partition.first)[:MOST_FOLLOWED]
        self.held = {
            offset: self.held[offset]
            for offset in {*followed, oldest, partition.oldest_held}
            if offset is not None and offset in self.held
        }

    def time_held(self, offset: int, since_ms: int) -> int:
        """Return for how many ms of its time a record was held that is known `since_ms`, and is not held now."""
        began_ms, ended_ms = self.released
        return self.held[offset] if offset in self.held else max(0, ended_ms - max(began_ms, since_ms))


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
                reach = _Reach(partition.epoch, now.steady_ms)
            self._look_at(partition, reach, now)
            reaches[source] = reach
        self._reaches = reaches

    def _look_at(self, partition: PartitionFacts, reach: _Reach, now: Now) -> None:
        stops = partition.is_covered or self._waits_for_rate(partition)
        elapsed_ms = reach.stop(now.steady_ms, stops=stops)
        if (high := self._highs.get(partition.source)) is not None:
            reach.note(high, now.steady_ms)
        reach.done_below(partition.first)
        if stops or (partition.oldest is None and partition.on_hold):
            reach.dated = True  # how old it is says nothing of how long it could be delivered
        if partition.level_delay_ms is None:
            reach.follow(partition, self._oldest(partition), elapsed_ms, reach.clock(now.steady_ms))

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

    def waits(self, facts: LaneFacts, standing: Standing, now: Now) -> dict[Partition, Wait]:
        """Return what the oldest record of each partition does that is not done."""
        ages, waits = self.ages(facts, standing, now), dict[Partition, Wait]()
        for source, partition in facts.partitions.items():
            waits[source] = Wait(
                ages[source], self._kept_by(partition), partition.first, is_sent=partition.in_flight > 0
            )
        return waits

    def _kept_by(self, partition: PartitionFacts) -> str:
        """Return what keeps the oldest record of a partition back deliberately; empty if nothing does."""
        if partition.level_delay_ms is None:
            oldest, held = self._oldest(partition), partition.oldest_held
            is_held = partition.is_covered or (held is not None and (oldest is None or held < oldest))
        else:
            is_held = partition.is_held or partition.held_heads > 0
        return HOLD if is_held else RATE if self._waits_for_rate(partition) else ""

    def _oldest(self, partition: PartitionFacts) -> int | None:
        """Return the offset of a main partition's oldest record that waits; None if none does."""
        waiting = (partition.oldest, self._unread(partition))
        return min((offset for offset in waiting if offset is not None), default=None)

    def _age(self, partition: PartitionFacts, now: Now) -> int:
        """Return the age of a main partition's oldest record that waits, in ms."""
        reach, offset = self._reaches.get(partition.source), self._oldest(partition)
        if reach is None or offset is None or self._waits_for_rate(partition):
            return 0
        since_ms, clock_ms = reach.since(offset), reach.clock(now.steady_ms)
        if since_ms is None:
            return 0
        if not reach.dated and offset == partition.oldest and partition.oldest_at_ms > 0:
            reach.dated = True
            since_ms = min(since_ms, clock_ms - max(0, now.wall_ms - partition.oldest_at_ms))
            reach.date(offset, since_ms)
        return max(0, clock_ms - since_ms - reach.time_held(offset, since_ms))

    def _unread_age(self, partition: PartitionFacts, now: Now) -> int:
        """Return for how many ms a level holds something that is not read although all that was read is done.

        It need not be due before the level's delay is over.
        """
        reach = self._reaches.get(partition.source)
        if reach is None or partition.pause is not None or partition.first != partition.next:
            return 0
        if (unread := self._unread(partition)) is None or (since_ms := reach.since(unread)) is None:
            return 0
        return max(0, reach.clock(now.steady_ms) - since_ms - (partition.level_delay_ms or 0))

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
