"""How long the oldest record of each partition has waited whose reason to wait is not deliberate (`why.py`).

This is the one age of a partition: `/status`, metrics (`undelivered`, and of levels `overdue`), heartbeats, the log and
`doctor` show it. `NotDelivered.is_deliberate` says which reasons do not count. A first delivery in progress does not
wait; a record that is retried in place does.

A partition's log is *due* up to some offset: of a main topic that is its high watermark, because an open transaction
keeps records back as well; of a level it is the first offset that is not due by the broker's time. Both are asked for
every ten seconds (`kafka/consumer/looks.py`). Each look notes the offset and the time, so that for any offset it is
known since when it could be delivered, whatever keeps it: also if no machine of the lane knows of it. Of a level
record in memory the exact due time is known; of a main partition that is new here, the timestamp of the first open
record.

The times are those of the partition's own clock. It stops while every waiting record of the partition waits
deliberately: so the age after a hold goes on from the age before it.

Used on the event loop; `overdue_ms` may be read on any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.core.why import LogEnd, PartitionWaits, Waiting

MOST_NOTES = 64
"""Notes kept of a partition. Once there are more, every second one goes: ages become less exact, never longer."""
LONG = 300_000
"""ms from which on a topic's oldest record counts as stalled."""
LONG_ALONE = 60_000
"""The same for one partition while the other partitions of its topic are below `SHORT`."""
SHORT = 10_000


class Age(NamedTuple):
    """For how many ms the oldest record of a partition has waited; 0 if none waits."""

    source: Partition
    waited_ms: int


class Wait(NamedTuple):
    """What the oldest waiting record of a partition waits for, and for how long.

    `reason`: of the oldest record whose reason is not deliberate, otherwise of the oldest one; None if none waits.
    `first`: the lowest offset that is not done. `is_sent`: records of the partition are in flight.
    """

    waited_ms: int
    reason: NotDelivered | None
    not_fetched: NotFetched | None
    first: int
    is_sent: bool


class LogEnds(NamedTuple):
    """Where the logs of a lane end.

    `highs`: with the records of open transactions. `committed`: where readers of committed records stop. `unanswered`:
    the partitions for which Kafka has not answered for long.
    """

    highs: Mapping[Partition, int]
    committed: Mapping[Partition, int] = MappingProxyType({})
    unanswered: Collection[Partition] = ()


class PartitionClock:
    """How far one partition's log was due, and when. Times are ms of its own clock, which stands at times."""

    def __init__(self, steady_ms: int) -> None:
        self.notes: deque[tuple[int, int]] = deque()
        self.is_dated = False
        """Whether the timestamp of a record says nothing more of how long it has waited."""
        self.stood_ms = 0
        self._stands, self._looked_ms = False, steady_ms

    @property
    def due_to(self) -> int:
        """The offset up to which the log was due at the last look, exclusive; 0 if there was none."""
        return self.notes[-1][0] if self.notes else 0

    def time(self, steady_ms: int) -> int:
        """Return the time of the partition's own clock."""
        return steady_ms - self.stood_ms

    def look(self, steady_ms: int, *, stands: bool) -> None:
        """Let the clock stand for the time since the last look, if all waited deliberately then or does now."""
        if self._stands or stands:
            self.stood_ms += steady_ms - self._looked_ms
        self._stands, self._looked_ms = stands, steady_ms
        self.is_dated = self.is_dated or stands

    def note(self, due_to: int, first: int, steady_ms: int) -> None:
        """Note that the log is due up to `due_to`, exclusive; drop the notes of which all is done below `first`."""
        notes = self.notes
        if notes and due_to < notes[-1][0]:
            notes.clear()  # it is another log
        if not notes or due_to > notes[-1][0]:
            notes.append((due_to, self.time(steady_ms)))
        while len(notes) > 1 and notes[0][0] <= first:
            notes.popleft()
        if len(notes) > MOST_NOTES:
            # What a removed note covers is covered by the next one, which is younger.
            self.notes = deque([*list(notes)[1:-1:2], notes[-1]])

    def since(self, offset: int) -> int | None:
        """Return since when the record at `offset` is known to be due; None if it is not known."""
        return next((at_ms for due_to, at_ms in self.notes if due_to > offset), None)

    def date(self, waiting: Waiting, now: Now) -> None:
        """Note since when the first open record of a new partition waits, once."""
        if self.is_dated or not waiting.since_ms or (since_ms := self.since(waiting.offset)) is None:
            return
        self.is_dated = True
        since_ms = min(since_ms, self.time(now.steady_ms) - max(0, now.wall_ms - waiting.since_ms))
        index = next(index for index, (due_to, _) in enumerate(self.notes) if due_to > waiting.offset)
        self.notes[index] = self.notes[index][0], since_ms


class Ages:
    """The ages of one lane's partitions."""

    def __init__(self) -> None:
        self.overdue_ms = 0
        """For how long the oldest record of the levels has waited, at the last look."""
        self._clocks: dict[Partition, PartitionClock] = {}
        self._ends = LogEnds({})

    # --- looks --------------------------------------------------------------------------------------------------------

    def note_ends(self, ends: LogEnds, facts: LaneFacts, now: Now) -> None:
        """Note where the logs end. How far a level is due, its heads say."""
        self._ends = ends
        mains = (source for source, partition in facts.partitions.items() if partition.is_main)
        self._look({source: ends.highs[source] for source in mains if source in ends.highs}, facts, now)

    def note_heads(self, heads: Mapping[Partition, int], facts: LaneFacts, now: Now) -> None:
        """Note the first offset of each level partition that is not due yet."""
        self._look(heads, facts, now)
        waits = self.waits(facts, now)
        levels = (waits[source].waited_ms for source, one in facts.partitions.items() if not one.is_main)
        self.overdue_ms = max(levels, default=0)

    def _look(self, due_to: Mapping[Partition, int], facts: LaneFacts, now: Now) -> None:
        clocks = self._clocks
        self._clocks = {source: clocks.get(source) or PartitionClock(now.steady_ms) for source in facts.partitions}
        for source, partition in facts.partitions.items():
            clock, waits = self._clocks[source], self._with_log(partition, due_to.get(source))
            # What is not due yet in a level has no age; a clock that stood for it would make its times less exact.
            is_kept = waits.kept is not None and (partition.is_main or waits.kept.reason is not NotDelivered.NOT_DUE)
            clock.look(now.steady_ms, stands=is_kept and waits.oldest is None)
            if source in due_to:
                clock.note(due_to[source], partition.first, now.steady_ms)
            if partition.is_main and waits.oldest is not None:
                clock.date(waits.oldest, now)

    # --- what they show -----------------------------------------------------------------------------------------------

    def waits(self, facts: LaneFacts, now: Now) -> dict[Partition, Wait]:
        """Return what the oldest record of each partition waits for, and for how long."""
        return {source: self._wait(partition, now) for source, partition in facts.partitions.items()}

    def _wait(self, partition: PartitionFacts, now: Now) -> Wait:
        waits = self._with_log(partition)
        waiting = waits.oldest or waits.kept
        return Wait(
            0 if waits.oldest is None else self._age(partition, waits.oldest, now),
            None if waiting is None else waiting.reason,
            waits.not_fetched,
            partition.first,
            is_sent=partition.counts.in_flight > 0,
        )

    def _age(self, partition: PartitionFacts, oldest: Waiting, now: Now) -> int:
        if partition.reset_left is not None and now.wall_ms < partition.reset_left.quiet_until_ms:
            return 0
        clock = self._clocks.get(partition.source)
        since_ms = None if clock is None else clock.since(oldest.offset)
        # A level's time is exact as long as nothing was kept deliberately: then only the clock knows what counts.
        if not partition.is_main and oldest.since_ms and (clock is None or since_ms is None or not clock.stood_ms):
            return max(0, now.wall_ms - oldest.since_ms)
        return 0 if clock is None or since_ms is None else max(0, clock.time(now.steady_ms) - since_ms)

    def _with_log(self, partition: PartitionFacts, due_to: int | None = None) -> PartitionWaits:
        """Return what of a partition waits, by the last look at its log, or by a new one, which it is `due_to`."""
        source = partition.source
        if due_to is None:
            due_to = self._clocks[source].due_to if source in self._clocks else 0
        end = LogEnd(due_to, self._ends.committed.get(source), source in self._ends.unanswered)
        return partition.waits.beside_log(end)


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
