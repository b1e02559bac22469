"""The state of one partition under one assignment, as a lane knows it. `ownership.py` has the table of the states."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sidecar.core.lane.suspicion import Suspicion
from sidecar.core.progress import SPAN, Progress, Tracker
from sidecar.core.record import NEVER, Now, Partition, Record

_OFFSET = attrgetter("offset")
HANDED_OVER = 3_000
"""ms that it may take until the lane learns of the end of a log; a record may have come meanwhile."""
MOST_NOTES = 64
"""Times kept of a partition. Each is of a run that ended in a pause, so they are a level delay or more apart."""


class AssignedPartition(NamedTuple):
    """A partition that was assigned to this sidecar, and where its last owner left off."""

    partition: Partition
    epoch: int
    progress: Progress


class FetchedRecords(NamedTuple):
    """Records of one partition, in order, as one call of the consumer hands them over.

    `seek_count` distinguishes runs fetched before a seek from those after it. `end`: the log ends at this offset (None:
    unknown). `high`: the broker had records below this offset (0: unknown). `last_at`: as in `Progress`, of a level.
    """

    partition: Partition
    epoch: int
    seek_count: int
    records: list[Record]
    end: int | None = None
    high: int = 0
    last_at: int | None = None


class Pause(NamedTuple):
    """The pause of a partition: it continues at `offset`, not before the steady time `at` (ms).

    `because`: the reason, as `/status` shows it.
    """

    offset: int
    at: int
    because: str


class AppendTimes:
    """Since when the records of a partition are known to be there, and which are known to have come later.

    A record waits for its level by the clock of the broker. If that is minutes ahead of ours, records that were seen
    before a pause must not begin to wait anew when they are fetched again. Otherwise they would wait for the whole
    difference, one delay at a time.

    If the clock of the broker is minutes behind ours, a level seems to be over at once. A record that is not due yet
    would then hop from level to level without a pause.
    """

    __slots__ = ("_end", "_end_at", "_notes")

    def __init__(self) -> None:
        self._notes: deque[tuple[int, int]] = deque(maxlen=MOST_NOTES)
        self._end, self._end_at = NEVER, 0

    def ended(self, end: int, steady: int) -> None:
        """Note that the log ended at `end` a moment ago (steady ms)."""
        self._end, self._end_at = end, steady - HANDED_OVER

    def after(self, offset: int) -> int:
        """Return the steady time (ms) after which the offset was appended, as far as is known."""
        return self._end_at if offset >= self._end else -NEVER

    def note(self, last: int, steady: int) -> None:
        """Note that everything up to the offset `last` is there now (steady ms)."""
        if not self._notes or self._notes[-1][0] < last:
            self._notes.append((last, steady))

    def since(self, offset: int, steady: int) -> int:
        """Return the steady time (ms) at which the offset was first known to be there; now, if it was not."""
        while self._notes and self._notes[0][0] < offset:
            self._notes.popleft()
        return self._notes[0][1] if self._notes else steady


@dataclass(slots=True)
class PartitionState:
    """The state of one partition.

    `level_delay`: the delay of its level in ms; 0 on the ready topic, None on a main topic.
    """

    source: Partition
    epoch: int
    tracker: Tracker
    level_delay: int | None
    level: str
    seek_count: int = 0
    in_flight: int = 0
    unsettled: int = 0
    """Records whose decision is not in Kafka yet."""
    retrying: int = 0
    """Records that are being retried in place."""
    load: int = 0
    """Bytes of its records that were admitted and are not done."""
    most: int = NEVER
    """The `load` that it may have, in bytes, as of its last pause for having more."""
    dirty: bool = False
    """Whether its progress moved since it was last committed."""
    urgent: bool = False
    """Whether it should be committed at once, because something waits for that."""
    committed: Progress | None = None
    """The progress that was committed last, by this sidecar or by the last owner."""
    width: int | None = None
    last_at: int | None = None
    """`width` and `last_at` are as in `Progress`: they go into every commit."""
    seen: AppendTimes = field(default_factory=AppendTimes)
    suspicion: Suspicion | None = None
    """Why its records need care before they are delivered (`quarantine.py`). Usually None, which costs nothing."""
    closing: bool = False
    paused: Pause | None = None
    blocked: str = ""
    """Why no record of it is delivered: Kafka refuses its copies. Empty if it is not blocked."""
    withheld: list[Record] = field(default_factory=list)

    def withhold(self, record: Record) -> None:
        """Keep a record back, by its offset: lower ones go first, whatever was tried and kept back again."""
        insort(self.withheld, record, key=_OFFSET)

    def due(self, record: Record) -> int:
        """Return when a record of it could be delivered at the earliest, epoch ms."""
        due = record.timestamp + (self.level_delay or 0)
        return due if record.life is None else max(due, record.life.due_at)

    @property
    def idle(self) -> bool:
        """Whether nothing of it is in flight or on its way into Kafka."""
        return self.in_flight == 0 and self.unsettled == 0

    @property
    def unsaved(self) -> int:
        """How many records were answered without Kafka knowing; a gap in the offsets may count as records."""
        done, known = self.tracker.snapshot(), self.committed or Progress(self.tracker.first)
        return self.unsettled + done.next - known.next + len(done.done) - len(known.done)

    def time_left(self, record: Record, now: Now) -> int:
        """Return the ms until the level delay of a record is over.

        Whatever the clock of the broker says, that is never later than the level delay after the record was first known
        to be there.
        """
        if self.level_delay is None or self.tracker.is_done(record.offset):
            return 0
        left = max(
            record.timestamp + self.level_delay - now.wall,
            self.seen.after(record.offset) + self.level_delay - now.steady,
        )
        if left <= 0:
            return left
        return min(left, self.seen.since(record.offset, now.steady) + self.level_delay - now.steady)

    def accepts(self, run: FetchedRecords) -> bool:
        """Whether records are taken: fetched in this assignment, after the last seek, and not paused or closing."""
        current = self.epoch == run.epoch and self.seek_count == run.seek_count
        return current and self.paused is None and not self.closing

    def may_fetch(self, steady: int) -> bool:
        """Return whether a paused partition may continue.

        Its time must have come, it must not be blocked or closing, and a quarter of its span and of its load must be
        free. With less room, a partition at its limit would be paused and sought for every record.
        """
        if self.paused is None or self.blocked or self.closing or self.paused.at > steady:
            return False
        if self.load > self.most * 3 // 4:
            return False
        return self.tracker.span(self.paused.offset) <= SPAN * 3 // 4


class PartitionStatus(NamedTuple):
    """One partition as `/status` shows it.

    `next_due_in`: ms, None if nothing is known to wait. `overdue_for`: ms by which its most overdue record is late,
    None if none is (`overdue.py`).
    """

    topic: str
    partition: int
    level: str
    state: str
    position: int
    in_flight: int
    held: int
    next_due_in: int | None
    overdue_for: int | None = None


def status_of(part: PartitionState, held: int, steady: int) -> PartitionStatus:
    """Return the present state of a partition, for people and probes."""
    parked = part.paused
    due = None if parked is None or parked.because != "not due" else max(0, parked.at - steady)
    return PartitionStatus(
        part.source.topic, part.source.number, part.level, _state(part), part.tracker.first, part.in_flight, held, due
    )


def _state(part: PartitionState) -> str:
    if part.closing:
        return "closing"
    if part.blocked:
        return f"held: {part.blocked}"
    if part.suspicion is not None and part.suspicion.stage != "first":
        return "suspect"
    return "open" if part.paused is None else part.paused.because
