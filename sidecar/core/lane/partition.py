"""The state of one partition under one assignment, as a lane knows it. `ownership.py` has the table of the states."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sidecar.core.lane.append_times import AppendTimes
from sidecar.core.lane.suspicion import Suspicion
from sidecar.core.progress import SPAN, Progress, Tracker
from sidecar.core.record import Now, Partition, Record

_OFFSET = attrgetter("offset")


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
    dirty: bool = False
    """Whether its progress moved since it was last committed."""
    urgent: bool = False
    """Whether it should be committed at once, because something waits for that."""
    committed: Progress | None = None
    """The progress that was committed last, by this sidecar or by the last owner."""
    width: int | None = None
    last_at: int | None = None
    """`width` and `last_at` are as in `Progress`: they go into every commit."""
    seen: AppendTimes = field(init=False)
    suspicion: Suspicion | None = None
    """Why its records need care before they are delivered (`quarantine.py`). Usually None, which costs nothing."""
    closing: bool = False
    paused: Pause | None = None
    blocked: str = ""
    """Why no record of it is delivered: Kafka refuses its copies. Empty if it is not blocked."""
    withheld: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = AppendTimes(self.level_delay or 0)

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
        """Return the ms until the level delay of a record is over, 0 or less if it is.

        That is never later than the level delay after the record was first known to be there, whatever the clock of the
        broker says (`append_times.py`).
        """
        delay = self.level_delay
        if delay is None or self.tracker.is_done(record.offset):
            return 0
        left = record.timestamp + delay - now.wall
        if left <= 0 and self.seen.is_over(record.offset, now.steady - delay):
            return left
        return self.seen.appended(record.offset, record.timestamp, now) + delay - now.steady

    def accepts(self, run: FetchedRecords) -> bool:
        """Whether records are taken: fetched in this assignment, after the last seek, and not paused or closing."""
        current = self.epoch == run.epoch and self.seek_count == run.seek_count
        return current and self.paused is None and not self.closing

    def may_fetch(self, steady: int) -> bool:
        """Return whether a paused partition may continue if there is memory for it.

        Its time must have come, it must not be blocked or closing, and a quarter of its span must be free. With less, a
        partition at its bound would be paused and sought for every record.
        """
        if self.paused is None or self.blocked or self.closing or self.paused.at > steady:
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
